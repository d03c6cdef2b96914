package csi

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/mounts"
	"github.com/nodelet/nodelet/kube/poddir"
)

// InTreeDriver mounts an in-tree kind of volumes as a CSI driver does: staged once on the node, published for each pod.
// It is part of this process and always registered. It limits the duration of its calls itself.
type InTreeDriver struct {
	Plugin string           // its name, such as kubernetes.io/iscsi
	Node   csipb.NodeClient // stage, unstage, publish, unpublish; nothing else is called
	// Handle returns the handle of the volume that is staged in a directory, which is named like Volume.Directory.
	Handle func(directory string) (handle string, ok bool)
}

// inTree reports whether a driver is an in-tree one: names of CSI drivers contain no slash.
func inTree(driver string) bool { return strings.Contains(driver, "/") }

// checkDriver returns an error for what cannot be the name of a driver.
func checkDriver(name string) error {
	if kind, ok := strings.CutPrefix(name, "kubernetes.io/"); ok {
		return poddir.CheckName("in-tree driver", kind)
	}
	return poddir.CheckName("CSI driver", name)
}

// inTreeLayout is the layout of volumes of in-tree drivers, which write the files around them themselves.
type inTreeLayout struct{}

const inTreeDevices = "volumeDevices"

func (inTreeLayout) staging(v *Volume) string {
	if v.Block {
		return filepath.Join("plugins", v.Driver, inTreeDevices, v.Directory)
	}
	return filepath.Join("plugins", v.Driver, v.Directory)
}

func (inTreeLayout) target(pod types.UID, v *Volume, staging string) string {
	if v.Block {
		return filepath.Join(staging, string(pod))
	}
	return podVolume(v.Driver, pod, v.Name)
}

func (inTreeLayout) beforeStage(f files, rec *record, _ *Volume, _ string) error {
	return f.mkdir(rec.Staging)
}

func (inTreeLayout) beforePublish(f files, rec *record, u *use, v *Volume, _ string) error {
	if v.Block {
		return f.linkDevice(rec.Driver, u)
	}
	if f.mounted(u.Target) {
		return nil
	}
	return f.mkdir(u.Target)
}

func (inTreeLayout) held(u *use) string { return u.Target }

func (inTreeLayout) aroundTarget(rec *record, u *use) []string {
	if rec.Block {
		return []string{u.Target, deviceLink(rec.Driver, u.Pod, u.Name)}
	}
	return []string{u.Target}
}

func (inTreeLayout) aroundStaging(rec *record) []string { return []string{rec.Staging} }

func (inTreeLayout) devices(*record) []string { return nil }

// findInTree finds the volumes of in-tree drivers that a kubelet has staged: plugins/<plugin>/<directory>, and
// plugins/<plugin>/volumeDevices/<directory>.
func (r *recovery) findInTree() error {
	if len(r.drivers) == 0 {
		return nil
	}
	root, err := filepath.EvalSymlinks(r.files.path)
	if err != nil {
		return err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(root))
	if err != nil {
		return fmt.Errorf("read the mounts: %w", err)
	}
	known := map[string]*record{}
	for _, v := range r.volumes {
		known[v.rec.Staging] = v.rec
	}
	for _, driver := range r.drivers {
		top := filepath.Join("plugins", driver.Plugin)
		for _, block := range []bool{false, true} {
			if block {
				top = filepath.Join(top, inTreeDevices)
			}
			err = errors.Join(err, r.eachStaged(top, func(directory, staging string) {
				handle, ok := driver.Handle(directory)
				if !ok {
					return
				}
				r.addInTree(known[staging], &record{
					Driver:     driver.Plugin,
					Handle:     handle,
					Attachable: true,
					Staging:    staging,
					Stage:      intent,
					Boot:       r.boot,
					Block:      block,
					Uses:       map[string]*use{},
				}, root, mounts)
			}))
		}
	}
	return err
}

// eachStaged calls do for each directory of a staged volume, which is two names deep.
func (r *recovery) eachStaged(top string, do func(directory, staging string)) error {
	outer, err := r.files.names(top)
	if err != nil {
		return err
	}
	for _, first := range outer {
		if first == inTreeDevices {
			continue
		}
		for _, second := range r.list(filepath.Join(top, first)) {
			do(filepath.Join(first, second), filepath.Join(top, first, second))
		}
	}
	return nil
}

// addInTree adds the record of a volume, with the pods that use it, unless there is another one of the same handle. To
// a known record it adds the pods that a kubelet has started since.
func (r *recovery) addInTree(known, rec *record, root string, mounts []*mountinfo.Info) {
	if known == nil && r.volumes[rec.key()] != nil {
		r.log.Warn("volume is staged in two directories, ignoring this one",
			"volume", rec.Handle, "dir", r.files.abs(rec.Staging))
		return
	}
	if rec.Block {
		r.addDevices(rec)
	} else {
		addMounts(rec, root, mounts)
	}
	if known == nil {
		r.volumes[rec.key()] = &volume{rec: rec}
		return
	}
	for id, u := range rec.Uses {
		if known.Uses[id] == nil {
			known.Uses[id] = u
		}
	}
}

// addMounts adds the pods in which the file system of a staging path is mounted.
func addMounts(rec *record, root string, mounts []*mountinfo.Info) {
	var staged *mountinfo.Info
	for _, m := range mounts {
		if m.Mountpoint == filepath.Join(root, rec.Staging) {
			staged = m
		}
	}
	if staged == nil {
		return
	}
	rec.Stage, rec.StageMounted = done, true
	for _, m := range mounts {
		target := strings.TrimPrefix(m.Mountpoint, root+"/")
		parts := strings.Split(target, "/")
		if m.Major != staged.Major || m.Minor != staged.Minor || len(parts) < 2 {
			continue
		}
		pod, name := types.UID(parts[1]), filepath.Base(target)
		if target == podVolume(rec.Driver, pod, name) {
			rec.addMounted(pod, name, target)
		}
	}
}

// addMounted adds the use of a pod for which the volume is mounted.
func (r *record) addMounted(pod types.UID, name, target string) {
	r.Uses[useID(pod, name)] = &use{Pod: pod, Name: name, Target: target, Publish: done, Mounted: true}
}

// addDevices adds the pods that have a device in a staging directory. Links in their directories have the volume's
// name.
func (r *recovery) addDevices(rec *record) {
	for _, pod := range r.list(rec.Staging) {
		target := filepath.Join(rec.Staging, pod)
		links := deviceLink(rec.Driver, types.UID(pod), "")
		if !r.files.mounted(target) {
			continue
		}
		for _, name := range r.list(links) {
			if mounts.SameDevice(r.files.abs(target), r.files.abs(filepath.Join(links, name))) {
				rec.addMounted(types.UID(pod), name, target)
			}
		}
	}
}
