package mounts

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/ownmounts"
	"github.com/nodelet/nodelet/test/programs"
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

// TestOthers checks that the other mounts of a directory of a file system are found: not those of another directory or
// another file system, and none of a path that is no mount.
func TestOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts")
	}
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"disk", "all", "again", "below", "other", "plain"} {
		if err := os.Mkdir(in(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mountOn(t, in("disk"), "tmpfs", "tmpfs", "")
	if err := os.Mkdir(in("disk/below"), 0o755); err != nil {
		t.Fatal(err)
	}
	bind := func(from, to string) {
		t.Helper()
		if err := unix.Mount(in(from), in(to), "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(in(to), unix.MNT_DETACH) })
	}
	bind("disk", "all")
	bind("disk", "again")
	bind("disk/below", "below")
	mountOn(t, in("other"), "tmpfs", "tmpfs", "")
	for path, want := range map[string][]string{
		"disk":       {in("all"), in("again")},
		"all":        {in("disk"), in("again")},
		"below":      nil,
		"disk/below": nil,
		"other":      nil,
		"plain":      nil,
		"missing":    nil,
	} {
		if got, err := Others(in(path)); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %q, %v, want %q", path, got, err, want)
		}
	}
}

// TestFileSystem checks that a directory and a link to it have the name of the file system that is mounted there.
func TestFileSystem(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts")
	}
	dir := t.TempDir()
	on, link := filepath.Join(dir, "on"), filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(on, 0o755), os.Symlink("on", link)); err != nil {
		t.Fatal(err)
	}
	mountOn(t, on, "tmpfs", "tmpfs", "")
	if got, below := fileSystem(t, on), fileSystem(t, dir); got == below || got != fileSystem(t, link) {
		t.Errorf("got %q on %q, and %q by the link, want one other name", got, below, fileSystem(t, link))
	}
	if got, err := FileSystem(filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: got %q, %v, want an error", got, err)
	}
}

// TestSubvolumes checks that the subvolumes of a btrfs are one file system, also those that are mounted alone: what
// fills it may be in each of them.
func TestSubvolumes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts")
	}
	mkfs, btrfs := programs.Find(t, "mkfs.btrfs"), programs.Find(t, "btrfs")
	dir := t.TempDir()
	image := filepath.Join(dir, "image")
	all, alone := filepath.Join(dir, "all"), filepath.Join(dir, "alone")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 128<<20), os.Mkdir(all, 0o755),
		os.Mkdir(alone, 0o755), os.Symlink(all, filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
	}
	run(mkfs, "-q", image)
	device := ownmounts.Loop(t, image)
	mountOn(t, all, device, "btrfs", "")
	run(btrfs, "subvolume", "create", filepath.Join(all, "pods"))
	run(btrfs, "subvolume", "create", filepath.Join(all, "images"))
	mountOn(t, alone, device, "btrfs", "subvol=images")
	for _, path := range []string{"all/pods", "all/images", "alone", "link", "link/pods"} {
		if got, want := fileSystem(t, filepath.Join(dir, path)), fileSystem(t, all); got != want {
			t.Errorf("%s: got %q, want %q: it is on the same file system", path, got, want)
		}
	}
	if got := fileSystem(t, dir); got == fileSystem(t, all) {
		t.Errorf("got %q also for the directory that it is mounted on", got)
	}
}

// fileSystem returns the name of the file system that a path is on.
func fileSystem(t *testing.T, path string) string {
	t.Helper()
	name, err := FileSystem(path)
	if err != nil || name == "" {
		t.Errorf("%s: got %q, %v, want a name", path, name, err)
	}
	return name
}

// mountOn mounts a file system for the time of the test.
func mountOn(t *testing.T, path, source, fstype, options string) {
	t.Helper()
	ownmounts.Need(t, fstype, unix.Mount(source, path, fstype, 0, options))
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
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
