package csi

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// Kind is a kind of volume of Kubernetes itself that works as a CSI driver does: staged once on the node, published for each pod.
// It is part of this process and always there. The name of its plugin, such as kubernetes.io/iscsi, is the driver's.
type Kind struct {
	Plugin string
	Node   csipb.NodeClient // stage, unstage, publish, unpublish; nothing else is called
	// Handle tells a volume's handle from the name of its directory, as the kubelet and Volume.Directory have it.
	Handle func(directory string) (handle string, ok bool)
}

// inTree: no name of a CSI driver has a slash in it.
func inTree(driver string) bool { return strings.Contains(driver, "/") }

// escape makes one element of a path from the name of a plugin.
func escape(plugin string) string { return strings.ReplaceAll(plugin, "/", "~") }

// checkDriver refuses what cannot be the name of a driver, or of one of the kinds of Kubernetes itself.
func checkDriver(name string) error {
	if kind, ok := strings.CutPrefix(name, "kubernetes.io/"); ok {
		return checkName("kind of volume", kind)
	}
	return checkName("CSI driver", name)
}

// admitKinds makes the kinds known, before anything else is.
func (c *CSI) admitKinds() {
	for _, k := range c.cfg.Kinds {
		c.drivers[k.Plugin] = &driver{name: k.Plugin, node: k.Node,
			can: map[csipb.NodeServiceCapability_RPC_Type]bool{csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME: true}}
	}
}

// kinds is the layout of volumes of Kubernetes' own kinds. They keep their notes themselves.
type kinds struct{}

const kindDevices = "volumeDevices"

func (kinds) staging(v *Volume) string {
	if v.Block {
		return filepath.Join("plugins", v.Driver, kindDevices, v.Directory)
	}
	return filepath.Join("plugins", v.Driver, v.Directory)
}

func (kinds) target(pod types.UID, v *Volume, staging string) string {
	if v.Block {
		return filepath.Join(staging, string(pod))
	}
	return filepath.Join("pods", string(pod), "volumes", escape(v.Driver), v.Name)
}

func (kinds) beforeStage(f files, rec *record, _ *Volume, _ string) error {
	return f.mkdir(rec.Staging)
}

func (kinds) beforePublish(f files, rec *record, u *use, v *Volume, _ string) error {
	if v.Block {
		return f.linkDevice(rec.Driver, u)
	}
	if f.mounted(u.Target) {
		return nil
	}
	return f.mkdir(u.Target)
}

func (kinds) aroundTarget(rec *record, u *use) []string {
	if rec.Block {
		return []string{u.Target, deviceLink(rec.Driver, u.Pod, u.Name)}
	}
	return []string{u.Target}
}

func (kinds) aroundStaging(rec *record) []string { return []string{rec.Staging} }

// recoverInTree finds the volumes of Kubernetes' own kinds that a kubelet has staged: plugins/<plugin>/<directory>, and
// plugins/<plugin>/volumeDevices/<directory>.
func (c *CSI) recoverInTree() error {
	if len(c.cfg.Kinds) == 0 {
		return nil
	}
	root, err := filepath.EvalSymlinks(c.files.path)
	if err != nil {
		return err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(root))
	if err != nil {
		return fmt.Errorf("read the mounts: %w", err)
	}
	known := map[string]bool{}
	for _, v := range c.volumes {
		known[v.rec.Staging] = true
	}
	for _, kind := range c.cfg.Kinds {
		for _, top := range []string{filepath.Join("plugins", kind.Plugin), filepath.Join("plugins", kind.Plugin, kindDevices)} {
			err = errors.Join(err, c.eachStaged(top, func(directory, staging string) {
				handle, ok := kind.Handle(directory)
				if !ok || known[staging] {
					return
				}
				c.recoverKind(&record{Driver: kind.Plugin, Handle: handle, Attachable: true, Staging: staging, Stage: intent, Boot: c.cfg.BootID,
					Block: strings.HasSuffix(top, kindDevices), Uses: map[string]*use{}}, root, mounts)
			}))
		}
	}
	return err
}

// eachStaged goes through the directories of staged volumes, which are two names deep.
func (c *CSI) eachStaged(top string, do func(directory, staging string)) error {
	outer, err := c.files.names(top)
	if err != nil {
		return err
	}
	for _, first := range outer {
		inner, err := c.files.names(filepath.Join(top, first))
		if err != nil || first == kindDevices {
			continue // no directory, so no volume
		}
		for _, second := range inner {
			do(filepath.Join(first, second), filepath.Join(top, first, second))
		}
	}
	return nil
}

// recoverKind makes a record of a volume that was found, with the pods that use it, unless one of that name is known.
func (c *CSI) recoverKind(r *record, root string, mounts []*mountinfo.Info) {
	if c.volumes[r.key()] != nil {
		c.log.Warn("a volume is staged at two places; this one is left alone", "volume", r.Handle, "dir", c.files.abs(r.Staging))
		return
	}
	if r.Block {
		c.devicesOf(r)
	} else {
		mountsOf(r, root, mounts)
	}
	c.volumes[r.key()] = &volume{rec: r}
}

// mountsOf adds the pods that have what is mounted at a staging path.
func mountsOf(r *record, root string, mounts []*mountinfo.Info) {
	var staged *mountinfo.Info
	for _, m := range mounts {
		if m.Mountpoint == filepath.Join(root, r.Staging) {
			staged = m
		}
	}
	if staged == nil {
		return
	}
	r.Stage, r.StageMounted = done, true
	for _, m := range mounts {
		parts := strings.Split(strings.TrimPrefix(m.Mountpoint, root+"/"), "/") // pods/<uid>/volumes/<plugin>/<name>
		if m.Major != staged.Major || m.Minor != staged.Minor || len(parts) != 5 || parts[0] != "pods" || parts[3] != escape(r.Driver) {
			continue
		}
		u := &use{Pod: types.UID(parts[1]), Name: parts[4], Target: filepath.Join(parts...), Publish: done, Mounted: true}
		r.Uses[useID(u.Pod, u.Name)] = u
	}
}

// devicesOf adds the pods that have a device in a staging directory; their links say by which name.
func (c *CSI) devicesOf(r *record) {
	pods, err := c.files.names(r.Staging)
	if err != nil {
		return
	}
	for _, pod := range pods {
		target := filepath.Join(r.Staging, pod)
		links := filepath.Dir(deviceLink(r.Driver, types.UID(pod), "any"))
		names, err := c.files.names(links)
		if err != nil || !c.files.mounted(target) {
			continue
		}
		for _, name := range names {
			if sameDevice(c.files.abs(target), c.files.abs(filepath.Join(links, name))) {
				r.Uses[useID(types.UID(pod), name)] = &use{Pod: types.UID(pod), Name: name, Target: target, Publish: done, Mounted: true}
			}
		}
	}
}

func sameDevice(a, b string) bool {
	one, two := deviceNumber(a), deviceNumber(b)
	return one != 0 && one == two
}

// deviceNumber is that of a device, links followed; 0 of anything else.
func deviceNumber(path string) uint64 {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0
	}
	return st.Rdev
}
