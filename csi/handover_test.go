package csi_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/host/mounts"
	"github.com/nodelet/nodelet/test/csi/fake"
	"github.com/nodelet/nodelet/test/ownmounts"
)

// newBlockWorld makes a world with a block volume, which is a loop device of 1 MiB.
func newBlockWorld(t *testing.T) (*world, *csi.Volume) {
	t.Helper()
	w := newWorld(t, func(c *fake.Config) { c.Loop = true })
	return w, w.blockVolume("a")
}

// blockVolume makes a block volume of 1 MiB in the driver's state.
func (w *world) blockVolume(name string) *csi.Volume {
	w.T.Helper()
	v := w.volume(name)
	v.Block = true
	image := filepath.Join(w.state, "volumes", v.Handle+".img")
	if err := errors.Join(os.Remove(image), os.WriteFile(image, make([]byte, 1<<20), 0o600)); err != nil {
		w.T.Fatal(err)
	}
	return v
}

// release releases the device that is held at a path. A process that another test forks has it open for a moment.
func (w *world) release(held string) {
	w.T.Helper()
	w.Until("the device is released", func() bool { return mounts.Release(held) == nil })
}

// TestBlockVolumeIsHeld checks that a loop device holds the device of a block volume open for a pod, as a kubelet's
// does, and goes with the pod: else the driver could not detach the device. While another process looks at it, it
// stays attached; the end is repeated then, as the agent does it.
func TestBlockVolumeIsHeld(t *testing.T) {
	t.Parallel()
	w, v := newBlockWorld(t)
	p := w.publish("pod-1", v)
	held := w.devices("pv-a/dev/pod-1")
	loops := ownmounts.Attached(t, held)
	if !mounts.SameDevice(p.Path, held) || len(loops) != 1 {
		t.Fatalf("%s is not the device %s, or is held by %q, want one loop device", held, p.Path, loops)
	}
	look, err := os.Open(loops[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := w.csi.Unpublish(t.Context(), "pod-1", v.Name); !errors.Is(err, unix.EBUSY) {
		t.Errorf("while the loop device is open: got %v, want that it is busy", err)
	}
	look.Close()
	w.unpublish("pod-1", v)
	if left := ownmounts.Attached(t, held); len(left) > 0 {
		t.Fatalf("got %q attached, want it detached", left)
	}
	w.nothingLeft()
}

// TestBlockVolumeByLink checks that a container does not get another device when the link that the driver has published
// leads to one later.
func TestBlockVolumeByLink(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *fake.Config) { c.Loop, c.Links = true, true })
	v, other := w.blockVolume("a"), w.blockVolume("b")
	p, q := w.publish("pod-1", v), w.publish("pod-2", other)
	device, err := os.Readlink(p.Path)
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{q.Path, filepath.Join(w.root, "missing")} {
		if err := errors.Join(os.Remove(p.Path), os.Symlink(target, p.Path)); err != nil {
			t.Fatal(err)
		}
		if _, err := w.csi.Keep(t.Context(), "pod-1", v); err == nil || !strings.Contains(err.Error(), "delete the pod") {
			t.Errorf("with a link to %s: got %v, want that the device is another", target, err)
		}
		if held := w.devices("pv-a/dev/pod-1"); !mounts.SameDevice(device, held) {
			t.Errorf("%s is not %s, the first device", held, device)
		}
	}
	w.unpublish("pod-1", v)
	w.unpublish("pod-2", other)
	w.nothingLeft()
}

// TestBlockVolumeForManyPods checks that pods that begin to use a block volume at the same moment do not disturb each
// other: they share the kubelet's file about it.
func TestBlockVolumeForManyPods(t *testing.T) {
	t.Parallel()
	w, v := newBlockWorld(t)
	w.publish("pod", v)
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			if _, err := w.csi.Publish(t.Context(), types.UID(fmt.Sprint("pod-", i)), v); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, pod := range w.csi.Pods() {
		w.unpublish(pod, v)
	}
	w.nothingLeft()
}

// devices returns a path below the directory of all block volumes.
func (w *world) devices(path string) string {
	return filepath.Join(w.root, "plugins/kubernetes.io/csi/volumeDevices", path)
}

// TestFilesLeftByBlockVolume checks that the unstaging of a block volume ends although its driver, or a kubelet, has
// left files in the directories around it, or in place of one. Nothing is removed that is mounted, or to which a link
// leads.
func TestFilesLeftByBlockVolume(t *testing.T) {
	t.Parallel()
	w, v := newBlockWorld(t)
	precious := filepath.Join(t.TempDir(), "precious")
	write(t, precious, "data")
	w.publish("pod-1", v)
	for _, dir := range []string{w.devices("staging/pv-a"), w.devices("publish/pv-a"), w.devices("pv-a/dev")} {
		if err := os.MkdirAll(filepath.Join(dir, "directory"), 0o750); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "file"), "")
		if err := os.Symlink(filepath.Dir(precious), filepath.Join(dir, "link")); err != nil {
			t.Fatal(err)
		}
	}
	w.release(w.devices("pv-a/dev/pod-1")) // else the mount on its directory would hide it
	mounted := []string{w.devices("staging/pv-a/directory"), w.devices("pv-a/dev")}
	for _, mount := range mounted {
		if err := unix.Mount(filepath.Dir(precious), mount, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	w.unpublish("pod-1", v)
	for _, mount := range mounted {
		before := w.calls("NodeUnstageVolume")
		w.Until("the volume is unstaged twice more", func() bool { return w.calls("NodeUnstageVolume") > before+1 })
		if got := read(t, precious); got != "data" || !w.inUse(v) {
			t.Errorf("while something is mounted: got %q, in use %t, want the data and that it is", got, w.inUse(v))
		}
		if err := unix.Unmount(mount, 0); err != nil {
			t.Fatal(err)
		}
	}
	w.nothingLeft()
	for i, other := range []func(path string) error{
		func(path string) error { return os.WriteFile(path, nil, 0o600) },
		func(path string) error { return os.Symlink(filepath.Dir(precious), path) },
	} {
		pod, staging := types.UID(fmt.Sprint("pod-", 2+i)), w.devices("staging/pv-a")
		w.publish(pod, v)
		if err := errors.Join(os.RemoveAll(staging), other(staging)); err != nil {
			t.Fatal(err)
		}
		w.unpublish(pod, v)
		w.nothingLeft()
	}
	if got := read(t, precious); got != "data" {
		t.Errorf("outside: got %q, want what was there", got)
	}
}

// TestNextVolumeOfTheName checks that the files of a block volume are not removed with those of another volume whose
// PersistentVolume had the same name.
func TestNextVolumeOfTheName(t *testing.T) {
	t.Parallel()
	w, v := newBlockWorld(t)
	next := w.blockVolume("b")
	next.Name = v.Name
	w.fail("NodeUnstageVolume", "Internal", 0)
	w.publish("pod-1", v)
	w.unpublish("pod-1", v)
	w.publish("pod-2", next)
	device := w.devices("publish/pv-a/device")
	write(t, device, "")
	w.heal("NodeUnstageVolume")
	w.Until("the first is unstaged", func() bool { return !w.inUse(v) })
	for _, path := range []string{device, w.devices("staging/pv-a"), w.devices("pv-a/data/vol_data.json")} {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("got %v, want what belongs to the next volume", err)
		}
	}
	w.unpublish("pod-2", next)
	w.nothingLeft()
}
