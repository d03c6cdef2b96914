package csi

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/kube/poddir"
)

// recovery fills a store at the start of the process with what earlier ones, of this agent or a kubelet, have left.
type recovery struct {
	*store
	drivers []InTreeDriver
	// unreadable is the first error of what cannot be read just now: pods may use the volumes that it hides.
	unreadable error
}

// run reads the journals, then the kubelet's files.
func (r *recovery) run() error {
	all, err := r.files.records(func(path string, err error) {
		r.log.Error("CSI record is damaged, renaming it and using the kubelet's files instead", "file", path, "err", err)
	})
	if err != nil {
		return err
	}
	for _, rec := range all {
		if rec.Boot != r.boot {
			rec.distrust()
		}
		r.volumes[rec.key()] = &volume{rec: rec}
	}
	err = errors.Join(r.findStaged(), r.findPublished(), r.findDevices(), r.findInTree(), r.unreadable)
	for _, v := range r.volumes {
		if v.rec.Stage == none && r.files.there(v.rec.Staging) {
			v.rec.Stage = intent // the file that says so is damaged or missing
		}
		v.kept = !inTree(v.rec.Driver)
	}
	return err
}

// check notes an error of a read, unless it says that there is nothing to read.
func (r *recovery) check(err error) {
	code, ok := errors.AsType[unix.Errno](err)
	if !ok || r.unreadable != nil || code == unix.ENOENT || code == unix.ENOTDIR || code == unix.ELOOP {
		return
	}
	r.unreadable = fmt.Errorf("look for CSI volumes (move what cannot be read away to start without it): %w", err)
}

// list returns the entries of a directory; none of what is not a directory, so not the kubelet's.
func (r *recovery) list(dir string) []string {
	names, err := r.files.names(dir)
	r.check(err)
	return names
}

// exists reports whether there is anything at a path.
func (r *recovery) exists(path string) bool {
	_, err := r.files.root.Lstat(path)
	r.check(err)
	return err == nil
}

// distrust marks as uncertain what a reboot may have undone: mounts are gone, but a driver may keep what it does not
// mount.
func (r *record) distrust() {
	if r.Stage == done {
		r.Stage = intent
	}
	for _, u := range r.Uses {
		if u.Publish == done {
			u.Publish = intent
		}
	}
}

// record returns the record of a volume that a file of the kubelet describes.
func (r *recovery) record(d volData) *record {
	k := key{d.Driver, d.Handle}
	v := r.volumes[k]
	if v == nil {
		// Attachable is not in the files: in doubt, the volume counts as in use.
		v = &volume{rec: &record{
			Driver:     d.Driver,
			Handle:     d.Handle,
			Boot:       r.boot,
			Attachable: d.Lifecycle != "Ephemeral",
			SELinux:    d.SELinux,
			Uses:       map[string]*use{},
			Staging:    mountStaging(d.Driver, d.Handle),
		}}
		r.volumes[k] = v
	}
	return v.rec
}

// data reads a file of the kubelet. A damaged one is logged and ignored.
func (r *recovery) data(dir string) (volData, bool) {
	d, err := r.files.readData(dir)
	r.check(err)
	if err == nil {
		err = poddir.CheckName("CSI driver", d.Driver)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.log.Warn("vol_data.json is damaged, ignoring the volume", "dir", r.files.abs(dir), "err", err)
	}
	return d, err == nil
}

// findStaged finds staged volumes: plugins/kubernetes.io/csi/<driver>/<hash>/vol_data.json.
func (r *recovery) findStaged() error {
	drivers, err := r.files.names(pluginDir)
	if err != nil {
		return err
	}
	for _, driver := range drivers {
		if driver == filepath.Base(devicesDir) {
			continue
		}
		for _, hash := range r.list(filepath.Join(pluginDir, driver)) {
			dir := filepath.Join(pluginDir, driver, hash)
			d, ok := r.data(dir)
			if !ok {
				continue
			}
			rec := r.record(d)
			if rec.Stage == none {
				rec.Stage, rec.Staging = intent, filepath.Join(dir, globalDir)
			}
		}
	}
	return nil
}

// findPublished finds published volumes: pods/<uid>/volumes/kubernetes.io~csi/<name>/vol_data.json.
func (r *recovery) findPublished() error {
	pods, err := r.files.names(poddir.Pods)
	if err != nil {
		return err
	}
	for _, pod := range pods {
		uid := types.UID(pod)
		for _, name := range r.list(podVolume(pluginname.CSI, uid, "")) {
			d, ok := r.data(podVolume(pluginname.CSI, uid, name))
			if !ok {
				r.hide(uid, name, false)
				continue
			}
			r.addUse(d, uid, &Volume{Name: name, Driver: d.Driver, Handle: d.Handle})
		}
	}
	return nil
}

// hide notes that a pod may use a volume of which its file does not say which it is, and no record does: one that a
// kubelet has published, perhaps in between, or whose record is lost.
func (r *recovery) hide(pod types.UID, volume string, block bool) {
	target := Target(pod, volume, block)
	if _, found := r.find(pod, volume); !found && r.files.mounted(target) {
		r.hidden[useID(pod, volume)] = target
		r.log.Warn("cannot find out which CSI volume a pod uses, no volume is unstaged until the pod ends: recreate the pod",
			"podUID", pod, "volume", volume)
	}
}

// addUse adds a pod's use of a volume that a file of the kubelet describes.
func (r *recovery) addUse(d volData, pod types.UID, v *Volume) {
	rec := r.record(d)
	if rec.Uses[useID(pod, v.Name)] != nil {
		return
	}
	// A kubelet has published it: an older record is out of date.
	rec.Block, rec.SELinux = v.Block, d.SELinux
	rec.Attachment = ""
	u := &use{Pod: pod, Name: v.Name, Target: layoutOf(d.Driver).target(pod, v, rec.Staging), Publish: intent}
	if r.files.mounted(u.Target) {
		u.Publish = done
		u.Mounted, u.Found = true, true
	}
	rec.Uses[useID(pod, v.Name)] = u
}

// findDevices finds block volumes: volumeDevices/<name>/data/vol_data.json, and pods/<uid>/volumeDevices/…/<name>.
func (r *recovery) findDevices() error {
	names, err := r.files.names(devicesDir)
	if err != nil {
		return err
	}
	pods, err := r.files.names(poddir.Pods)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == "staging" || name == "publish" {
			continue
		}
		d, ok := r.device(name)
		if !ok {
			for _, pod := range r.list(filepath.Join(devicesDir, "publish", name)) {
				r.hide(types.UID(pod), name, true)
			}
			continue
		}
		v := &Volume{Name: name, Block: true, Driver: d.Driver, Handle: d.Handle}
		rec, staging := r.record(d), blockStaging(name)
		if rec.Stage == none && (r.exists(staging) || len(rec.Uses) == 0) {
			rec.Staging, rec.Block = staging, true
		}
		for _, pod := range pods {
			if r.exists(deviceLink(pluginname.CSI, types.UID(pod), name)) {
				r.addUse(d, types.UID(pod), v)
			}
		}
	}
	return nil
}

// device returns what the kubelet's file says of a block volume or, without a file that can be read, its record. A
// kubelet may have published the volume for other pods since the record was written.
func (r *recovery) device(name string) (volData, bool) {
	d, ok := r.data(dataDir(name))
	staging := blockStaging(name)
	for k, v := range r.volumes {
		if !ok && v.rec.Block && v.rec.Staging == staging {
			return volData{Driver: k.driver, Handle: k.handle, SELinux: v.rec.SELinux}, true
		}
	}
	return d, ok
}
