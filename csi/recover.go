package csi

import (
	"errors"
	"io/fs"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
)

// recover learns from the records and the kubelet's files what earlier lives, of this agent or of a kubelet, have left.
func (c *CSI) recover() error {
	all, err := c.files.records(func(path string, err error) {
		c.log.Error("a CSI record cannot be read; it is set aside, and the volume is known by the kubelet's files", "record", path, "err", err)
	})
	if err != nil {
		return err
	}
	for _, r := range all {
		if r.Boot != c.cfg.BootID {
			r.distrust()
		}
		c.volumes[r.key()] = &volume{rec: r}
	}
	return errors.Join(c.recoverStaged(), c.recoverPods(), c.recoverDevices(), c.recoverInTree())
}

// distrust: after a reboot no mount is left, but a driver may hold what it does not mount.
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

// recovered gives the record of a volume that the kubelet's files speak of.
func (c *CSI) recovered(d volData) *record {
	k := key{d.Driver, d.Handle}
	v := c.volumes[k]
	if v == nil {
		// Attachable is not in the files: in doubt, the volume counts as in use.
		v = &volume{rec: &record{Driver: d.Driver, Handle: d.Handle, Boot: c.cfg.BootID, Attachable: d.Lifecycle != "Ephemeral", SELinux: d.SELinux,
			Uses: map[string]*use{}, Staging: drivers{}.staging(&Volume{Driver: d.Driver, Handle: d.Handle})}}
		c.volumes[k] = v
	}
	return v.rec
}

// data reads a kubelet's note. One that is missing or damaged is told of; nothing can be done by it.
func (c *CSI) data(dir string) (volData, bool) {
	d, err := c.files.readData(dir)
	if err == nil {
		err = checkName("CSI driver", d.Driver)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.log.Warn("cannot tell whose volume this is", "dir", c.files.abs(dir), "err", err)
	}
	return d, err == nil
}

// recoverStaged finds staged volumes: plugins/kubernetes.io/csi/<driver>/<hash>/vol_data.json.
func (c *CSI) recoverStaged() error {
	drivers, err := c.files.names(pluginDir)
	if err != nil {
		return err
	}
	for _, driver := range drivers {
		if driver == filepath.Base(devicesDir) {
			continue
		}
		hashes, err := c.files.names(filepath.Join(pluginDir, driver))
		if err != nil {
			continue // no directory, so none of the kubelet's
		}
		for _, hash := range hashes {
			dir := filepath.Join(pluginDir, driver, hash)
			d, ok := c.data(dir)
			if !ok {
				continue
			}
			r := c.recovered(d)
			if r.Stage == none {
				r.Stage, r.Staging = intent, filepath.Join(dir, globalDir)
			}
		}
	}
	return nil
}

// recoverPods finds published volumes: pods/<uid>/volumes/kubernetes.io~csi/<name>/vol_data.json.
func (c *CSI) recoverPods() error {
	pods, err := c.files.names("pods")
	if err != nil {
		return err
	}
	for _, pod := range pods {
		names, err := c.files.names(filepath.Join("pods", pod, "volumes", escape(PluginName)))
		if err != nil {
			continue
		}
		for _, name := range names {
			uid := types.UID(pod)
			d, ok := c.data(podVolumeDir(uid, name))
			if !ok {
				continue
			}
			c.recoverUse(d, uid, &Volume{Name: name, Driver: d.Driver, Handle: d.Handle})
		}
	}
	return nil
}

func (c *CSI) recoverUse(d volData, pod types.UID, v *Volume) {
	r := c.recovered(d)
	r.Block = r.Block || v.Block
	if r.Uses[useID(pod, v.Name)] != nil {
		return
	}
	u := &use{Pod: pod, Name: v.Name, Target: layoutOf(d.Driver).target(pod, v, r.Staging), Publish: intent}
	if c.files.mounted(u.Target) {
		u.Publish, u.Mounted = done, true
	}
	r.Uses[useID(pod, v.Name)] = u
}

// recoverDevices finds block volumes: volumeDevices/<name>/data/vol_data.json, and pods/<uid>/volumeDevices/…/<name>.
func (c *CSI) recoverDevices() error {
	names, err := c.files.names(devicesDir)
	if err != nil {
		return err
	}
	pods, err := c.files.names("pods")
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == "staging" || name == "publish" {
			continue
		}
		d, ok := c.data(filepath.Join(devicesDir, name, "data"))
		if !ok {
			continue
		}
		v := &Volume{Name: name, Block: true, Driver: d.Driver, Handle: d.Handle}
		r := c.recovered(d)
		if r.Stage == none && c.files.exists(drivers{}.staging(v)) {
			r.Stage, r.Staging, r.Block = intent, drivers{}.staging(v), true
		}
		for _, pod := range pods {
			if c.files.exists(deviceLink(PluginName, types.UID(pod), name)) {
				c.recoverUse(d, types.UID(pod), v)
			}
		}
	}
	return nil
}
