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
	"golang.org/x/sys/unix"
)

func tool(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return strings.TrimSpace(string(out)), nil
}

// loopOf is the loop device of a volume's image; empty where it has none.
func (d *Driver) loopOf(id string) (string, error) {
	if !d.cfg.Loop {
		return "", nil
	}
	out, err := tool("losetup", "--noheadings", "--output", "NAME", "--associated", d.image(filepath.Base(id)))
	first, _, _ := strings.Cut(out, "\n")
	return strings.TrimSpace(first), err
}

func (d *Driver) attachLoop(id string) (string, error) {
	if loop, err := d.loopOf(id); err != nil || loop != "" {
		return loop, err
	}
	return tool("losetup", "--find", "--show", d.image(id))
}

func (d *Driver) detachLoop(id string) error {
	loop, err := d.loopOf(id)
	if err != nil || loop == "" {
		return err
	}
	_, err = tool("losetup", "--detach", loop)
	return err
}

// grow brings a loop device, and the ext4 on it, to the size of its image.
func (d *Driver) grow(id string, fs bool) error {
	loop, err := d.loopOf(id)
	if err != nil || loop == "" {
		return err
	}
	_, err = tool("losetup", "--set-capacity", loop)
	if err == nil && fs {
		_, err = tool("resize2fs", loop)
	}
	return err
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

// blank: the first 64 KiB, where every file system has its marks, hold nothing.
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

func mounted(path string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}
