package csi

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
)

// layout says where the volumes of a driver are below the root directory, and what lies around them: the kubelet's ways.
type layout interface {
	staging(v *Volume) string
	target(pod types.UID, v *Volume, staging string) string
	// beforeStage and beforePublish make what a driver finds when it is called, and the kubelet's notes.
	beforeStage(f files, rec *record, v *Volume, node string) error
	beforePublish(f files, rec *record, u *use, v *Volume, node string) error
	// aroundStaging and aroundTarget list what is removed when the driver has done its part, in this order.
	aroundStaging(rec *record) []string
	aroundTarget(rec *record, u *use) []string
}

// layoutOf is where the volumes of a driver are, or of a kind of volume of Kubernetes itself.
func layoutOf(driver string) layout {
	if inTree(driver) {
		return kinds{}
	}
	return drivers{}
}

// deviceLink is the link by which a pod's directory names its block volume.
func deviceLink(plugin string, pod types.UID, name string) string {
	return filepath.Join("pods", string(pod), "volumeDevices", escape(plugin), name)
}

// linkDevice leaves that link: the kubelet, and this agent's list of volumes, know by it that a pod has a device.
func (f files) linkDevice(plugin string, u *use) error {
	link := deviceLink(plugin, u.Pod, u.Name)
	if f.exists(link) {
		return nil
	}
	if err := f.mkdir(filepath.Dir(link)); err != nil {
		return err
	}
	return f.root.Symlink(f.abs(u.Target), link)
}

// drivers is the layout of volumes of CSI drivers.
type drivers struct{}

func (drivers) staging(v *Volume) string {
	if v.Block {
		return filepath.Join(devicesDir, "staging", v.Name)
	}
	return filepath.Join(pluginDir, v.Driver, fmt.Sprintf("%x", sha256.Sum256([]byte(v.Handle))), globalDir)
}

func (drivers) target(pod types.UID, v *Volume, _ string) string {
	if v.Block {
		return filepath.Join(devicesDir, "publish", v.Name, string(pod))
	}
	return filepath.Join(podVolumeDir(pod, v.Name), "mount")
}

func podVolumeDir(pod types.UID, name string) string {
	return filepath.Join("pods", string(pod), "volumes", escape(PluginName), name)
}

func (drivers) beforeStage(f files, rec *record, v *Volume, node string) error {
	if err := f.mkdir(rec.Staging); err != nil {
		return err
	}
	if v.Block {
		return f.writeDeviceData(v, node, rec.SELinux)
	}
	return f.writeData(filepath.Dir(rec.Staging), volData{Handle: v.Handle, Driver: v.Driver, SELinux: rec.SELinux})
}

// writeDeviceData leaves the kubelet's note of a block volume.
func (f files) writeDeviceData(v *Volume, node, selinux string) error {
	return f.writeData(filepath.Join(devicesDir, v.Name, "data"), volData{SpecVolID: v.Name, Handle: v.Handle, Driver: v.Driver, NodeName: node,
		AttachmentID: AttachmentName(v.Driver, v.Handle, node), SELinux: selinux})
}

// beforePublish makes the directories around a target, which its driver makes itself.
func (drivers) beforePublish(f files, rec *record, u *use, v *Volume, node string) error {
	around := filepath.Dir(u.Target)
	if v.Block {
		if err := f.mkdir(around); err != nil {
			return err
		}
		if err := f.writeDeviceData(v, node, ""); err != nil {
			return err
		}
		return f.linkDevice(PluginName, u)
	}
	lifecycle := "Persistent"
	if v.Ephemeral {
		lifecycle = "Ephemeral"
	}
	return f.writeData(around, volData{SpecVolID: v.Name, Handle: v.Handle, Driver: v.Driver, NodeName: node,
		AttachmentID: AttachmentName(v.Driver, v.Handle, node), Lifecycle: lifecycle, SELinux: rec.SELinux})
}

func (drivers) aroundTarget(rec *record, u *use) []string {
	if rec.Block {
		return []string{u.Target, deviceLink(PluginName, u.Pod, u.Name)}
	}
	dir := filepath.Dir(u.Target)
	return []string{u.Target, filepath.Join(dir, dataFile), dir}
}

func (drivers) aroundStaging(rec *record) []string {
	dir := filepath.Dir(rec.Staging)
	if !rec.Block {
		return []string{rec.Staging, filepath.Join(dir, dataFile), dir}
	}
	name := filepath.Base(rec.Staging)
	data := filepath.Join(devicesDir, name, "data")
	return []string{rec.Staging, filepath.Join(devicesDir, "publish", name), filepath.Join(data, dataFile), data,
		filepath.Join(devicesDir, name, "dev"), filepath.Join(devicesDir, name)}
}
