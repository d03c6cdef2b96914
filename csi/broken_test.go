package csi_test

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/ownmounts"
)

// breakMount puts a file system in the place of a mount whose daemon has gone.
func breakMount(t *testing.T, path string) {
	t.Helper()
	if err := unix.Unmount(path, 0); err != nil {
		t.Fatal(err)
	}
	ownmounts.FUSE(t, path).End()
}

// TestRootIsMountedLater checks that the mounts of drivers are seen if the root directory was mounted on itself at the
// start of the agent, which makes it a shared mount.
func TestRootIsMountedLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	if err := unix.Mount(w.root, w.root, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		t.Fatal(err)
	}
	v := w.volume("a")
	p := w.publish("pod-1", v)
	if err := unix.Unmount(p.Path, 0); err != nil {
		t.Fatal(err)
	}
	if w.csi.Has(t.Context(), "pod-1", v) {
		t.Error("got that the pod has a volume whose mount is gone, want that it has not")
	}
	w.unpublish("pod-1", v)
}

// TestBrokenMount checks that a volume is published again whose file system has lost its daemon, and staged again for
// the next pod.
func TestBrokenMount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	data := filepath.Join(w.state, "volumes/vol-a.img/data")
	write(t, data, "precious")
	p := w.publish("pod-1", v)
	if w.publish("pod-1", v); w.calls("NodePublishVolume") != 1 {
		t.Errorf("published %d times, want once", w.calls("NodePublishVolume"))
	}
	breakMount(t, p.Path)
	p = w.publish("pod-1", v)
	if w.calls("NodePublishVolume") != 2 || read(t, filepath.Join(p.Path, "data")) != "precious" {
		t.Errorf("got %+v, want the volume published again", p)
	}
	for _, m := range w.mounts() {
		if strings.HasSuffix(m, "/globalmount") {
			breakMount(t, m)
		}
	}
	if got := w.publish("pod-2", v); read(t, filepath.Join(got.Path, "data")) != "precious" {
		t.Errorf("got %+v, want the volume for another pod", got)
	}
	if n := w.calls("NodeStageVolume"); n != 2 {
		t.Errorf("staged %d times, want twice", n)
	}
	breakMount(t, p.Path)
	w.unpublish("pod-1", v)
	w.unpublish("pod-2", v)
	w.nothingLeft()
}

// TestSilentMount checks that the agent starts although the daemon of a staged volume does not answer.
func TestSilentMount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	w.publish("pod-1", v)
	w.Kill()
	for _, m := range w.mounts() {
		if strings.HasSuffix(m, "/globalmount") {
			if err := unix.Unmount(m, 0); err != nil {
				t.Fatal(err)
			}
			defer ownmounts.FUSE(t, m).End()
		}
	}
	w.begin()
	if !w.inUse(v) {
		t.Error("got that the volume is not in use, want that it is")
	}
	w.Kill()
}
