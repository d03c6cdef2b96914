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

// TestBlockVolumeOfKubelet checks that the second mount of a block volume and the loop device by which a kubelet holds
// it go with the pod: else the driver could not detach the device. While another process looks at the loop device, it
// stays attached; the end is repeated then, as the agent does it.
func TestBlockVolumeOfKubelet(t *testing.T) {
	t.Parallel()
	w, v := newBlockWorld(t)
	p := w.publish("pod-1", v)
	held := filepath.Join(w.root, "plugins/kubernetes.io/csi/volumeDevices", v.Name, "dev/pod-1")
	if err := os.MkdirAll(filepath.Dir(held), 0o750); err != nil {
		t.Fatal(err)
	}
	write(t, held, "")
	if err := unix.Mount(p.Path, held, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	loop := ownmounts.Loop(t, held)
	backing := filepath.Join("/sys/block", filepath.Base(loop), "loop/backing_file")
	look, err := os.Open(loop)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.csi.Unpublish(t.Context(), "pod-1", v.Name); !errors.Is(err, unix.EBUSY) {
		t.Errorf("while the loop device is open: got %v, want that it is busy", err)
	}
	look.Close()
	w.Until("the volume is unpublished", func() bool {
		err := w.csi.Unpublish(t.Context(), "pod-1", v.Name)
		if err != nil && !errors.Is(err, unix.EBUSY) { // losetup of another test may look at it, too
			t.Fatal(err)
		}
		return err == nil
	})
	if text, err := os.ReadFile(backing); err == nil && strings.HasPrefix(string(text), held) {
		t.Fatalf("got %s attached, want it detached", backing)
	}
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
