package csi

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/atomicfile"
	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/kube/poddir"
)

// layout says where the volumes of a driver are below the root directory, and which files are around them, as in a
// kubelet.
type layout interface {
	staging(v *Volume) string
	target(pod types.UID, v *Volume, staging string) string
	// beforeStage and beforePublish create what a driver finds when it is called, and the kubelet's files.
	beforeStage(f files, rec *record, v *Volume, node string) error
	beforePublish(f files, rec *record, u *use, v *Volume, node string) error
	// held is where the device of a block volume is held open for a pod.
	held(u *use) string
	// aroundStaging and aroundTarget return what to remove after the driver has taken the volume down, in this order.
	aroundStaging(rec *record) []string
	aroundTarget(rec *record, u *use) []string
	// devices returns the directories of a block volume that hold devices, never data: what is left in them when the
	// driver has taken the volume down is removed too.
	devices(rec *record) []string
}

// layoutOf returns the layout of a driver's volumes.
func layoutOf(driver string) layout {
	if inTree(driver) {
		return inTreeLayout{}
	}
	return csiLayout{}
}

// podVolume is the directory of a volume in a pod's directory.
func podVolume(plugin string, pod types.UID, name string) string {
	return filepath.Join(poddir.Pods, string(pod), poddir.Of(poddir.Volumes, plugin, name))
}

// deviceLink is the link in a pod's directory to its block volume.
func deviceLink(plugin string, pod types.UID, name string) string {
	return filepath.Join(poddir.Pods, string(pod), poddir.Of(poddir.Devices, plugin, name))
}

// linkDevice creates that link: the kubelet, and this agent's list of volumes, find the pod's device by it.
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

// Target returns where a CSI driver has a volume for a pod, relative to the root directory.
func Target(pod types.UID, volume string, block bool) string {
	if block {
		return filepath.Join(devicesDir, "publish", volume, string(pod))
	}
	return filepath.Join(podVolume(pluginname.CSI, pod, volume), "mount")
}

// mountStaging is where a CSI driver stages a volume with a file system, and blockStaging where it stages another one.
func mountStaging(driver, handle string) string {
	return filepath.Join(pluginDir, driver, fmt.Sprintf("%x", sha256.Sum256([]byte(handle))), globalDir)
}

func blockStaging(volume string) string { return filepath.Join(devicesDir, "staging", volume) }

// csiLayout is the layout of volumes of CSI drivers.
type csiLayout struct{}

func (csiLayout) staging(v *Volume) string {
	if v.Block {
		return blockStaging(v.Name)
	}
	return mountStaging(v.Driver, v.Handle)
}

func (csiLayout) target(pod types.UID, v *Volume, _ string) string {
	return Target(pod, v.Name, v.Block)
}

func (csiLayout) beforeStage(f files, rec *record, v *Volume, node string) error {
	if err := f.mkdir(rec.Staging); err != nil {
		return err
	}
	if v.Block {
		return f.writeData(dataDir(v.Name), dataOf(v, node, rec.SELinux))
	}
	return f.writeData(filepath.Dir(rec.Staging), volData{Handle: v.Handle, Driver: v.Driver, SELinux: rec.SELinux})
}

// dataOf returns what the kubelet's file says of a volume on a node.
func dataOf(v *Volume, node, selinux string) volData {
	return volData{
		SpecVolID:    v.Name,
		Handle:       v.Handle,
		Driver:       v.Driver,
		NodeName:     node,
		AttachmentID: pluginname.Attachment(v.Driver, v.Handle, node),
		SELinux:      selinux,
	}
}

// dataDir returns the directory of the kubelet's file about a block volume.
func dataDir(volume string) string { return filepath.Join(devicesDir, volume, "data") }

// beforePublish creates the directories around a target; the driver creates the target itself.
func (csiLayout) beforePublish(f files, rec *record, u *use, v *Volume, node string) error {
	around := filepath.Dir(u.Target)
	if v.Block {
		if err := f.mkdir(around); err != nil {
			return err
		}
		if err := f.writeData(dataDir(v.Name), dataOf(v, node, "")); err != nil {
			return err
		}
		return f.linkDevice(pluginname.CSI, u)
	}
	data := dataOf(v, node, rec.SELinux)
	data.Lifecycle = "Persistent"
	if v.Ephemeral {
		data.Lifecycle = "Ephemeral"
	}
	return f.writeData(around, data)
}

func (csiLayout) held(u *use) string { return filepath.Join(devicesDir, u.Name, "dev", string(u.Pod)) }

func (l csiLayout) aroundTarget(rec *record, u *use) []string {
	if rec.Block {
		return []string{u.Target, deviceLink(pluginname.CSI, u.Pod, u.Name), l.held(u)}
	}
	return aroundMount(u.Target)
}

func (csiLayout) aroundStaging(rec *record) []string {
	if !rec.Block {
		return aroundMount(rec.Staging)
	}
	name := filepath.Base(rec.Staging)
	device := filepath.Join(devicesDir, name)
	return slices.Concat(
		[]string{rec.Staging, filepath.Join(devicesDir, "publish", name)},
		withData(dataDir(name)),
		[]string{filepath.Join(device, "dev"), device},
	)
}

func (csiLayout) devices(rec *record) []string {
	name := filepath.Base(rec.Staging)
	if rec.Staging != blockStaging(name) {
		return nil
	}
	return []string{rec.Staging, filepath.Join(devicesDir, "publish", name), filepath.Join(devicesDir, name, "dev")}
}

// aroundMount returns what to remove of a volume that is mounted on a path beside vol_data.json, in this order.
func aroundMount(path string) []string {
	return append([]string{path}, withData(filepath.Dir(path))...)
}

// withData returns what to remove of a directory that has vol_data.json, in this order. A write that failed or that a
// crash cut off has left the new content.
func withData(dir string) []string {
	data := filepath.Join(dir, dataFile)
	return []string{atomicfile.Leftover(data), data, dir}
}
