package mounts

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Of returns the entry in the mount table of the mount that a path is on. A mount point is on the topmost mount there.
// A server of the file system is not asked.
func Of(path string) (*mountinfo.Info, error) {
	st, err := mountOf(path)
	if err != nil {
		return nil, err
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

// mountOf returns the ID of the mount that a path is on, and whether the path is its root.
func mountOf(path string) (*unix.Statx_t, error) {
	st := &unix.Statx_t{}
	if err := unix.Statx(unix.AT_FDCWD, path, asIs, unix.STATX_MNT_ID, st); err != nil {
		return nil, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return st, nil
}

// Others returns where else the same directory of the same file system is mounted as on a path. If nothing is mounted
// on the path, or what is mounted there cannot be examined, there are none. A server of the file system is not asked.
func Others(path string) (points []string, err error) {
	st, err := mountOf(path)
	if err != nil || !IsRoot(st) {
		return nil, nil
	}
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("find other mounts of what is mounted on %s: %w", path, err)
	}
	i := slices.IndexFunc(all, func(m *mountinfo.Info) bool { return uint64(m.ID) == st.Mnt_id })
	if i < 0 {
		return nil, fmt.Errorf("find other mounts of the file system at %s: it has just been unmounted", path)
	}
	for j, m := range all {
		if j != i && m.Major == all[i].Major && m.Minor == all[i].Minor && m.Root == all[i].Root {
			points = append(points, m.Mountpoint)
		}
	}
	return points, nil
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

// FileSystem returns a name of the file system that a path is on: its device number, or the source of its mount where
// each subvolume has a device number of its own. A file system has the same name by all its mounts.
func FileSystem(path string) (string, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return "", &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	if uint32(fs.Type) == unix.BTRFS_SUPER_MAGIC {
		return sourceOf(path)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return strconv.FormatUint(uint64(st.Dev), 10), nil
}

// sourceOf returns the source of the mount that a path is on. It follows links.
func sourceOf(path string) (string, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	m, err := Of(path)
	if err != nil {
		return "", err
	}
	return m.Source, nil
}
