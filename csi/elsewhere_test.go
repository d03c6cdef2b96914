package csi_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/mounts"
	"github.com/nodelet/nodelet/test/ownmounts"
)

// bind mounts a directory on another one.
func bind(t *testing.T, from, to string, flags uintptr) {
	t.Helper()
	if err := unix.Mount(from, to, "", unix.MS_BIND|flags, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(to, unix.MNT_DETACH) })
}

// staging is where the only volume is staged.
func (w *world) staging() string {
	w.T.Helper()
	found, err := filepath.Glob(filepath.Join(w.root, "plugins/kubernetes.io/csi", driverName, "*/globalmount"))
	if err != nil || len(found) != 1 {
		w.T.Fatalf("got staging paths %q, %v, want one", found, err)
	}
	return found[0]
}

// refusedFor: the volume a, which no pod uses, is not unstaged, because it is mounted at a path.
func (w *world) refusedFor(path string) {
	w.T.Helper()
	_, err := w.csi.Publish(w.T.Context(), "pod-2", w.labelled("a", labelOne))
	if err == nil || !strings.Contains(err.Error(), `still mounted by other references ["`+path+`"]`) {
		w.T.Errorf("with another SELinux label: got error %v, want that the volume is still mounted at %s", err, path)
	}
	w.Kill() // waits for what unstages
	if n := w.calls("NodeUnstageVolume"); n > 0 || !w.inUse(w.volume("a")) {
		w.T.Errorf("got %d calls to unstage the volume, and in use %q, want none, and the volume in use", n, w.csi.InUse())
	}
}

// TestMountedElsewhere checks that a volume whose file system is mounted elsewhere, too, is not unstaged and counts as
// in use, also after the agent has restarted, until that mount is gone: its disk must not be detached.
func TestMountedElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	p := w.publish("pod-1", v)
	elsewhere := t.TempDir()
	bind(t, p.Path, elsewhere, 0)
	w.unpublish("pod-1", v)
	w.refusedFor(elsewhere)
	w.begin()
	w.refusedFor(elsewhere)
	if err := unix.Unmount(elsewhere, 0); err != nil {
		t.Fatal(err)
	}
	w.begin()
	w.nothingLeft()
	if n := w.calls("NodeUnstageVolume"); n != 1 {
		t.Errorf("unstaged %d times, want once", n)
	}
}

// TestPublishedWithoutRecord checks that a volume is not unstaged while it is mounted in the directory of a pod that
// nobody knows to use it.
func TestPublishedWithoutRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	p := w.publish("pod-1", v)
	other := filepath.Join(w.root, "pods/pod-9/volumes/kubernetes.io~csi/pv-a/mount")
	if err := os.MkdirAll(other, 0o755); err != nil {
		t.Fatal(err)
	}
	bind(t, p.Path, other, 0)
	w.unpublish("pod-1", v)
	w.refusedFor(other)
}

// TestPartIsMountedElsewhere checks that a mount of a directory of a volume, and one of another volume of the same file
// system, do not keep a volume staged, as with the kubelet.
func TestPartIsMountedElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v, other := w.volume("a"), w.volume("b")
	p := w.publish("pod-1", v)
	w.publish("pod-2", other)
	if err := os.Mkdir(filepath.Join(p.Path, "part"), 0o755); err != nil {
		t.Fatal(err)
	}
	bind(t, filepath.Join(p.Path, "part"), t.TempDir(), 0)
	w.unpublish("pod-1", v)
	w.Until("the volume is unstaged", func() bool { return !w.inUse(v) })
	w.unpublish("pod-2", other)
	w.nothingLeft()
}

// TestVolumesShareFileSystem checks that two volumes with the same file system, such as those of a share of a server,
// do not wait for each other.
func TestVolumesShareFileSystem(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v, other := w.volume("a"), w.volume("b")
	image := filepath.Join(w.state, "volumes/vol-b.img")
	if err := errors.Join(os.Remove(image), os.Symlink("vol-a.img", image)); err != nil {
		t.Fatal(err)
	}
	w.publish("pod-1", v)
	w.publish("pod-2", other)
	w.unpublish("pod-1", v)
	w.Until("the volume is unstaged", func() bool { return !w.inUse(v) })
	if !w.inUse(other) {
		t.Error("the other volume: got that it is not in use, want that it is")
	}
	w.unpublish("pod-2", other)
	w.nothingLeft()
}

// TestRootIsMountedElsewhere checks that a volume is unstaged although the root directory is mounted elsewhere, too,
// where each mount of a driver appears.
func TestRootIsMountedElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	elsewhere := t.TempDir()
	bind(t, w.root, w.root, unix.MS_REC)
	if err := unix.Mount("", w.root, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		t.Fatal(err)
	}
	bind(t, w.root, elsewhere, 0)
	v := w.volume("a")
	w.publish("pod-1", v)
	if copied := filepath.Join(elsewhere, strings.TrimPrefix(w.staging(), w.root)); !mounts.At(copied) {
		t.Fatalf("got nothing mounted on %s, want the volume", copied)
	}
	w.unpublish("pod-1", v)
	w.Until("the volume is unstaged", func() bool { return !w.inUse(v) })
}

// TestBrokenMountElsewhere checks that a volume whose daemon has gone is unstaged although it is mounted elsewhere.
func TestBrokenMountElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	w.publish("pod-1", v)
	staging := w.staging()
	if err := unix.Unmount(staging, 0); err != nil {
		t.Fatal(err)
	}
	daemon := ownmounts.FUSE(t, staging)
	bind(t, staging, t.TempDir(), 0)
	daemon.End()
	w.unpublish("pod-1", v)
	w.nothingLeft()
}
