package fake

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodelet/nodelet/test/ownmounts"
)

func tool(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return strings.TrimSpace(string(out)), nil
}

// loopOf is the loop device of a volume's image; empty where it has none.
func (d *disks) loopOf(id string) (string, error) {
	if !d.cfg.Loop {
		return "", nil
	}
	out, err := tool("losetup", "--noheadings", "--output", "NAME", "--associated", d.image(filepath.Base(id)))
	first, _, _ := strings.Cut(out, "\n")
	return strings.TrimSpace(first), err
}

func (d *disks) attachLoop(id string) (string, error) {
	if loop, err := d.loopOf(id); err != nil || loop != "" {
		return loop, err
	}
	return ownmounts.AttachLoop(d.image(id))
}

func (d *disks) detachLoop(id string) error {
	loop, err := d.loopOf(id)
	if err != nil || loop == "" {
		return err
	}
	_, err = tool("losetup", "--detach", loop)
	return err
}

// grow brings a loop device, and the ext4 on it, to the size of its image.
func (d *disks) grow(id string, fs bool) error {
	loop, err := d.loopOf(id)
	if err != nil || loop == "" {
		return err
	}
	if _, err = tool("losetup", "--set-capacity", loop); err != nil || !fs {
		return err
	}
	_, err = tool("resize2fs", loop)
	if err != nil && strings.Contains(err.Error(), "Permission denied to resize") {
		// The kernel grows a mounted ext4 only for those with CAP_SYS_RESOURCE; the next staging does it without.
		return errors.Join(os.WriteFile(d.path("grow", id), nil, 0o644),
			status.Errorf(codes.FailedPrecondition, "volume %s cannot grow while it is in use", id))
	}
	return err
}

// growLater does at staging what could not be done while the volume was in use.
func (d *disks) growLater(id, loop string) error {
	if _, err := os.Stat(d.path("grow", id)); err != nil {
		return nil
	}
	if _, err := tool("e2fsck", "-fp", loop); err != nil {
		return err
	}
	if _, err := tool("resize2fs", loop); err != nil {
		return err
	}
	return os.Remove(d.path("grow", id))
}

// mountFS mounts the file system of a device, which is made if the device is blank.
func mountFS(device, target, fstype string, flags []string) error {
	if fstype == "" {
		fstype = "ext4"
	}
	if blank(device) {
		if _, err := tool("mkfs."+fstype, "-q", device); err != nil {
			return err
		}
	}
	args := []string{"-t", fstype}
	if len(flags) > 0 {
		args = append(args, "-o", strings.Join(flags, ","))
	}
	_, err := tool("mount", append(args, device, target)...)
	return err
}

// blank reports whether the first 64 KiB, where every file system has its marks, hold nothing.
func blank(device string) bool {
	f, err := os.Open(device)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, 64<<10)
	if _, err := f.ReadAt(head, 0); err != nil {
		return false
	}
	for _, b := range head {
		if b != 0 {
			return false
		}
	}
	return true
}

// setGroup does what VOLUME_MOUNT_GROUP promises.
func (d *Driver) setGroup(target string, m *csipb.VolumeCapability_MountVolume) error {
	if !d.cfg.MountGroup || m.GetVolumeMountGroup() == "" {
		return nil
	}
	gid, err := strconv.Atoi(m.GetVolumeMountGroup())
	if err != nil {
		return err
	}
	return errors.Join(os.Chown(target, -1, gid), os.Chmod(target, 0o2770))
}

func bind(from, to string, readOnly bool) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "bind mount", Path: to, Err: err}
	}
	if !readOnly {
		return nil
	}
	return unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// unmount takes away what is mounted at a path; nothing there is fine.
func unmount(path string) error {
	err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "unmount", Path: path, Err: err}
	}
	return nil
}

// mountedFrom reports whether a device is mounted, as far as this process can see. The device itself says nothing: it
// lingers as long as any mount namespace of the machine has a copy of the mount.
func mountedFrom(device string) bool {
	found, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.Source != device, m.Source == device
	})
	return device != "" && (err != nil || len(found) > 0)
}

func mounted(path string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// unmountBroken unmounts a file system whose daemon has gone, as drivers with such file systems do.
func unmountBroken(path string) error {
	if _, err := os.Lstat(path); errors.Is(err, unix.ENOTCONN) {
		return unmount(path)
	}
	return nil
}
