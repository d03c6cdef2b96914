package mounts

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Of returns the entry in the mount table of the mount that a path is on. A mount point is on the topmost mount there.
// A server of the file system is not asked.
func Of(path string) (*mountinfo.Info, error) {
	var st unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	if err := unix.Statx(unix.AT_FDCWD, path, flags, unix.STATX_MNT_ID, &st); err != nil {
		return nil, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		found := uint64(m.ID) == st.Mnt_id
		return !found, found
	})
	if err != nil {
		return nil, fmt.Errorf("find the mount of %s: %w", path, err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("find the mount of %s: it has just been unmounted", path)
	}
	return all[0], nil
}

// KeepsLabels reports whether the file system at a path has an SELinux label for each file, which can be changed. One
// without, or with one label for all its files, refuses that.
func KeepsLabels(path string) (bool, error) {
	m, err := Of(path)
	return err == nil && keepsLabels(m), err
}

func keepsLabels(m *mountinfo.Info) bool {
	return slices.Contains(strings.Split(m.Options+","+m.VFSOptions, ","), "seclabel")
}
