package mounts

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/ownmounts"
)

// TestOf checks that the mount of a path is the one that hides all others there, and that its server is not asked.
func TestOf(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts")
	}
	dir := t.TempDir()
	check := func(path, at, fstype string) {
		t.Helper()
		m, err := Of(filepath.Join(dir, path))
		if err != nil || m.Mountpoint != filepath.Join(dir, at) || m.FSType != fstype {
			t.Errorf("%s: got %+v, %v, want %s at %q", path, m, err, fstype, at)
		}
	}
	mount := func(path, fstype string) {
		t.Helper()
		if err := unix.Mount(fstype, filepath.Join(dir, path), fstype, 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(filepath.Join(dir, path), unix.MNT_DETACH) })
	}
	mount("", "ramfs")
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "on/a/dir"), 0o755), os.Mkdir(filepath.Join(dir, "to"), 0o755),
		os.Symlink("on", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	mount("on/a", "ramfs")
	check("on/a", "on/a", "ramfs")
	mount("on", "tmpfs")
	check("on", "on", "tmpfs")
	check("link", "", "ramfs")
	if err := os.MkdirAll(filepath.Join(dir, "on/a"), 0o755); err != nil {
		t.Fatal(err)
	}
	check("on/a", "on", "tmpfs")
	check("link/a", "on", "tmpfs")
	if m, err := Of(filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: got %+v, %v, want an error", m, err)
	}
	ownmounts.FUSE(t, filepath.Join(dir, "to"))
	check("to", "to", "fuse")
}

// TestKeepsLabels checks the options by which the kernel says that a file system has an SELinux label for each file.
func TestKeepsLabels(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{
		"36 35 0:33 / /m rw,relatime shared:1 - tmpfs tmpfs rw,seclabel,size=4k,inode64":           true,
		"36 35 8:1 / /m rw,seclabel,relatime - ext4 /dev/sda1 rw":                                  true,
		"36 35 0:33 / /m rw,relatime - nfs4 server:/export rw,vers=4.2,rsize=1048576,hard":         false,
		`36 35 8:1 / /m rw - ext4 /dev/sda1 rw,context="system_u:object_r:container_file_t:s0:c1"`: false,
		"36 35 0:33 /seclabel /m/seclabel rw - fuse.seclabel seclabel rw,noseclabel":               false,
	} {
		all, err := mountinfo.GetMountsFromReader(strings.NewReader(line), nil)
		if err != nil || len(all) != 1 || keepsLabels(all[0]) != want {
			t.Errorf("%s: got %t, %v, want %t", line, !want, err, want)
		}
	}
	if keeps, err := KeepsLabels(filepath.Join(t.TempDir(), "missing")); keeps || err == nil {
		t.Errorf("missing: got %t, %v, want an error", keeps, err)
	}
}
