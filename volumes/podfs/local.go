package podfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/mounts"
	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/volumes/block"
)

// groupMark is the mark of a local volume whose files do not have the pod's fsGroup yet. Once they have, the pod may
// change their modes: the group is not set again as long as the volume is mounted. If the pod ends before, the other
// pods that use the volume get the mark.
const groupMark = "fsgroup-pending"

// reservedMark is the mark of a local volume that only one pod may use, in the directory of this pod. It has the mark
// before anything else of the volume.
const reservedMark = "reserved"

// reserve keeps a local volume for one pod, until it is unmounted, unless another pod has it. A pod that has it already
// keeps it.
func (v *FS) reserve(uid types.UID, on OnDisk) error {
	v.reserving.Lock()
	defer v.reserving.Unlock()
	pods, err := v.Pods()
	if err != nil {
		return err
	}
	for _, owner := range append([]types.UID{uid}, pods...) {
		all, err := v.List(owner)
		switch {
		case err != nil:
			return err
		case !slices.Contains(all, on):
		case owner == uid:
			return nil
		default:
			return errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod")
		}
	}
	pod, err := v.makePod(uid)
	if err != nil {
		return err
	}
	defer pod.Close()
	return setMark(pod, on, reservedMark)
}

// mountLocal binds a directory of the node, or mounts a device of it, which is formatted if it is blank. The group of
// the files is changed for the first pod that uses the volume.
func (v *FS) mountLocal(ctx context.Context, p Persistent, s *corev1.LocalVolumeSource) (Mounted, error) {
	on := OnDisk{pluginname.Local, p.PV.Name}
	mount, first, device, err := v.localMount(ctx, p, s)
	if err != nil {
		return Mounted{}, err
	}
	if device != nil {
		defer device.Close() // it was only read
	}
	pod, err := v.makePod(p.Pod.UID)
	if err != nil {
		return Mounted{}, err
	}
	defer pod.Close()
	err = v.makePoint(ctx, pod, on, func(dir *os.File) error {
		if first && !p.ReadOnly && v.ownerOf(p.Pod, false).gid != nil {
			if err := setMark(pod, on, groupMark); err != nil {
				return err
			}
		}
		return mount(dir)
	})
	if err != nil {
		return Mounted{}, err
	}
	m := Mounted{HostPath: v.hostPath(p.Pod.UID, on), MountPoint: true, SELinuxRelabel: true}
	if device != nil && !p.ReadOnly { // also if it was mounted before: a crash may have come between the two
		if err := allowWriting(m.HostPath); err != nil {
			return Mounted{}, fmt.Errorf("make %s writable: %w", m.HostPath, err)
		}
	}
	pending, err := hasMark(pod, on, groupMark)
	if err != nil || !pending {
		return m, err
	}
	if !p.ReadOnly { // it has the mark of another pod
		if err := v.Own(ctx, p.Pod, m.HostPath); err != nil {
			return Mounted{}, err
		}
	}
	return m, clearMark(pod, on, groupMark)
}

// passGroup leaves the change of a volume's group, if it has not ended, to the other pods that use the volume: to their
// next refresh. The volume is not mounted for this pod any more.
func (v *FS) passGroup(pod *os.File, uid types.UID, on OnDisk) error {
	pending, err := hasMark(pod, on, groupMark)
	if err != nil || !pending {
		return err
	}
	others, err := v.mountsElsewhere(on, uid)
	if err != nil {
		return err
	}
	for _, m := range others {
		other := filepath.Base(strings.TrimSuffix(m.Mountpoint, "/"+on.path()))
		err := v.inPod(types.UID(other), func(pod *os.File) error { return setMark(pod, on, groupMark) })
		if err != nil { // a full disk must not keep a pod from terminating
			v.log.Warn("cannot leave a volume to another pod whose fsGroup not all of its files have",
				"podUID", other, "volume", on.Name, "err", err)
		}
	}
	return nil
}

// localMount returns how to mount a local volume. first reports whether no other pod uses it. device is nil for a
// directory; otherwise the caller must close it when the volume is mounted: it is locked until then.
func (v *FS) localMount(ctx context.Context, p Persistent, s *corev1.LocalVolumeSource) (
	mount func(*os.File) error, first bool, device *block.Device, err error) {
	isDevice, err := v.isDevice(ctx, s.Path)
	if err != nil {
		return nil, false, nil, err
	}
	on := OnDisk{pluginname.Local, p.PV.Name}
	target, options := v.hostPath(p.Pod.UID, on), MountOptions(p.PV)
	if isDevice {
		if device, err = block.Open(ctx, s.Path); err != nil {
			return nil, false, nil, err
		}
	}
	other, err := v.elsewhere(on, p.Pod.UID, func(m *mountinfo.Info) bool {
		return device == nil || device.MayHold(m)
	})
	switch {
	case err != nil:
		if device != nil {
			_ = device.Close()
		}
		return nil, false, nil, err
	case device == nil && len(options) > 0:
		mount = func(*os.File) error { return bindWith(ctx, s.Path, target, options) }
	case device == nil:
		mount = func(dir *os.File) error { return bindDir(s.Path, dir, anySource) }
	case other != nil: // a mounted device is neither formatted nor repaired
		mount = func(dir *os.File) error { return shareMount(other, dir, p.ReadOnly) }
	default:
		fs := block.FileSystem{Options: options, ReadOnly: p.ReadOnly, Grow: p.Grow}
		if s.FSType != nil {
			fs.Type = *s.FSType
		}
		mount = func(*os.File) error { return device.Mount(ctx, target, fs) }
	}
	return mount, other == nil, device, nil
}

// isDevice reports whether a local volume is a block device. Otherwise it is a directory; anything else is an error. It
// follows links, as in names below /dev/disk.
func (v *FS) isDevice(ctx context.Context, path string) (bool, error) {
	info, err := v.statNode(ctx, path)
	if err != nil {
		return false, err
	}
	if m := info.Mode(); m&os.ModeDevice != 0 && m&os.ModeCharDevice == 0 {
		return true, nil
	}
	if !info.IsDir() {
		return false, fmt.Errorf("path %s is neither a directory nor a block device", path)
	}
	return false, nil
}

// bindWith binds a directory of the node with those of the mount options that belong to a mount, not to a file system,
// such as noexec.
func bindWith(ctx context.Context, path, target string, options []string) error {
	err := block.Mount(ctx, "none", path, target, append([]string{"bind"}, options...))
	if err == nil {
		return nil
	}
	// It may be bound without its options.
	if e := unix.Unmount(target, unix.UMOUNT_NOFOLLOW); e != nil && !errors.Is(e, unix.EINVAL) {
		err = errors.Join(err, fmt.Errorf("unmount %s: %w", target, e))
	}
	return err
}

// bindDir binds a directory of the node if check finds nothing against it. What is mounted on an open directory cannot
// be unmounted meanwhile.
func bindDir(path string, dir *os.File, check func(source *os.File) error) error {
	source, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer source.Close()
	if err := check(source); err != nil {
		return fmt.Errorf("bind mount %s: %w", path, err)
	}
	if err := unix.Mount(fdPath(source), fdPath(dir), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind mount %s: %w", path, err)
	}
	return nil
}

func anySource(*os.File) error { return nil }

// shareMount binds the mount of another pod's device. A pod that writes cannot share a device that is mounted
// read-only, but a mount of the kubelet for a pod that only reads: that alone is read-only, and so is what is bound.
func shareMount(of *mountinfo.Info, dir *os.File, readOnly bool) error {
	if !readOnly && slices.Contains(strings.Split(of.VFSOptions, ","), "ro") {
		return errors.New("the device is mounted read-only on this node for another pod: " +
			"it can be mounted for writing when that pod has terminated")
	}
	return bindDir(of.Mountpoint, dir, stillMounted)
}

// stillMounted checks that a mount of another pod is still one: else the directory below it would be bound in its
// place.
func stillMounted(source *os.File) error {
	st, err := stat(source)
	if err == nil && !mounts.IsRoot(&st) {
		err = errors.New("it has just been unmounted for another pod")
	}
	return err
}

// allowWriting makes a mount writable if it is read-only.
func allowWriting(target string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(target, &fs); err != nil || fs.Flags&unix.ST_RDONLY == 0 {
		return err
	}
	kept := uintptr(fs.Flags) & (unix.MS_NOEXEC | unix.MS_NOSUID | unix.MS_NODEV) // else a remount clears them
	return unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|kept, "")
}

// leaveDevice unmounts a local device where a kubelet has mounted it once for all pods, if no other pod uses it. This
// agent mounts a device for each pod. That of this pod is unmounted already: of two pods that end at the same moment,
// the later one finds none. Its directory is still there: after a crash, Unmount is called again.
func (v *FS) leaveDevice(pod types.UID, on OnDisk) error {
	dir, err := os.Open(filepath.Join(filepath.Dir(v.podsDir), "plugins", on.Plugin, "mounts"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	other, err := v.elsewhere(on, pod, func(*mountinfo.Info) bool { return true })
	if err != nil || other != nil {
		return err
	}
	if err := unmount(dir, on.Name); err != nil {
		return err
	}
	return rmdir(dir, on.Name)
}

// elsewhere returns a mount of the volume for another pod, or nil. A mount that is not the volume's is passed over: a
// PersistentVolume of the same name, which has been deleted, may be mounted yet.
func (v *FS) elsewhere(on OnDisk, pod types.UID, isVolume func(*mountinfo.Info) bool) (*mountinfo.Info, error) {
	found, err := v.mountsElsewhere(on, pod)
	if i := slices.IndexFunc(found, isVolume); i >= 0 {
		return found[i], err
	}
	return nil, err
}

// mountsElsewhere returns the mounts for other pods of volumes with this name.
func (v *FS) mountsElsewhere(on OnDisk, pod types.UID) ([]*mountinfo.Info, error) {
	pods, err := filepath.EvalSymlinks(v.podsDir)
	if err != nil {
		return nil, err
	}
	own := filepath.Join(pods, string(pod), on.path())
	return mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.Mountpoint == own || !strings.HasPrefix(m.Mountpoint, pods+"/") ||
			!strings.HasSuffix(m.Mountpoint, "/"+on.path()), false
	})
}

// Grow grows the file system of a local device, which is mounted for the pod, to the size of the device. It does
// nothing for a directory and for a block volume, which have no file system of their own.
func (v *FS) Grow(ctx context.Context, p Persistent) error {
	s := p.PV.Spec.Local
	if s == nil || p.Block {
		return nil
	}
	if isDevice, err := v.isDevice(ctx, s.Path); err != nil || !isDevice {
		return err
	}
	device, err := block.Open(ctx, s.Path)
	if err != nil {
		return err
	}
	defer device.Close()
	return device.Grow(ctx, v.hostPath(p.Pod.UID, OnDisk{pluginname.Local, p.PV.Name}))
}
