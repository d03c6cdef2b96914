package csi_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/test/ownmounts"
)

// hidePod restarts csi as after a kubelet, with the file about the volume a of pod-1 damaged.
func (w *world) hidePod() {
	w.T.Helper()
	w.Kill()
	if err := os.RemoveAll(filepath.Join(w.root, "nodelet")); err != nil {
		w.T.Fatal(err)
	}
	write(w.T, w.podFile(), "")
	w.begin()
}

// podFile is the kubelet's file about the volume a of pod-1.
func (w *world) podFile() string {
	return filepath.Join(w.root, "pods/pod-1/volumes/kubernetes.io~csi/pv-a/vol_data.json")
}

func (w *world) inUse(v *csi.Volume) bool {
	return slices.Contains(w.csi.InUse(), csi.UniqueName(v.Driver, v.Handle))
}

// keeps: the volume a counts as used, also for a pod that needs it with another label.
func (w *world) keeps() {
	w.T.Helper()
	if !w.inUse(w.volume("a")) {
		w.T.Error("the volume of the pod: got that it is not in use, want that it is")
	}
	_, err := w.csi.Publish(w.T.Context(), "pod-3", w.labelled("a", labelOne))
	if _, ok := errors.AsType[*csi.LabelError](err); !ok {
		w.T.Errorf("with another SELinux label: got error %v, want one about the label", err)
	}
}

// TestDamagedDataFile checks that a volume of a kubelet that seems unused is not unstaged while a pod may use it whose
// file is damaged, also not after another pod has used it and the agent has restarted.
func TestDamagedDataFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	used, unused := w.volume("a"), w.volume("b")
	w.publish("pod-1", used)
	w.hidePod()
	w.publish("pod-2", unused)
	w.unpublish("pod-2", unused)
	w.Until("the other volume is unstaged", func() bool { return !w.inUse(unused) })
	w.keeps()
	w.publish("pod-3", used)
	w.unpublish("pod-3", used)
	w.restart()
	w.keeps()
	w.Kill() // waits for what unstages
	if n := w.calls("NodeUnstageVolume"); n != 1 {
		t.Errorf("unstaged %d volumes, want one", n)
	}
}

// TestDamagedDataFileOfOne checks that a volume of two pods is not unstaged when the only one of them ends whose file
// is not damaged.
func TestDamagedDataFileOfOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	w.publish("pod-1", v)
	w.publish("pod-2", v)
	w.hidePod()
	w.unpublish("pod-2", v)
	w.keeps()
}

// TestHiddenPodBesideOldRecord checks that a volume is not unstaged while a pod may use it whose file is damaged, if
// the record of the volume is from before a kubelet ran the node: it does not name the pod.
func TestHiddenPodBesideOldRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	w.publish("pod-2", v)
	journal := w.journals()[0]
	old := read(t, journal)
	w.publish("pod-1", v)
	w.unpublish("pod-2", v)
	w.Kill()
	write(t, journal, old)
	write(t, w.podFile(), "")
	w.begin()
	w.unpublish("pod-2", v)
	w.keeps()
}

// spoilDevice calls test in a world with a block volume, whose file spoil makes damaged or missing.
func spoilDevice(t *testing.T, test func(w *world, v *csi.Volume, spoil func())) {
	t.Parallel()
	for name, change := range map[string]func(file string) error{
		"damaged": func(file string) error { return os.WriteFile(file, nil, 0o600) },
		"missing": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, v := newBlockWorld(t)
			test(w, v, func() {
				file := filepath.Join(w.root, "plugins/kubernetes.io/csi/volumeDevices", v.Name, "data/vol_data.json")
				if err := change(file); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// TestDeviceBesideOldRecord checks that a block volume is not unstaged while a pod uses it, if its file is damaged or
// missing and the record of the volume is from before a kubelet ran the node: it does not name the pod.
func TestDeviceBesideOldRecord(t *testing.T) {
	spoilDevice(t, func(w *world, v *csi.Volume, spoil func()) {
		w.publish("pod-2", v)
		journal := w.journals()[0]
		old := read(w.T, journal)
		w.publish("pod-1", v)
		w.unpublish("pod-2", v)
		w.Kill()
		write(w.T, journal, old)
		spoil()
		w.begin()
		if got := w.csi.Used("pod-1"); len(got) != 1 {
			w.T.Fatalf("got volumes %q of pod-1, want one", got)
		}
		w.unpublish("pod-2", v)
		w.unpublish("pod-1", v)
		w.nothingLeft()
		if last := w.driver.Calls(); !strings.HasPrefix(last[len(last)-1], "NodeUnstageVolume ") {
			w.T.Errorf("got calls %q, want that the volume is unstaged last", last)
		}
	})
}

// TestDeviceWithoutRecord checks that no volume of a kubelet is unstaged while a pod uses a block volume that neither a
// file nor a record names: it may be the same one by another name.
func TestDeviceWithoutRecord(t *testing.T) {
	spoilDevice(t, func(w *world, v *csi.Volume, spoil func()) {
		other := w.blockVolume("b")
		w.publish("pod-1", v)
		w.publish("pod-2", other)
		w.Kill()
		if err := os.RemoveAll(filepath.Join(w.root, "nodelet")); err != nil {
			w.T.Fatal(err)
		}
		spoil()
		w.begin()
		w.unpublish("pod-2", other)
		files := *other
		files.Block = false
		_, err := w.csi.Publish(w.T.Context(), "pod-3", &files)
		if err == nil || !strings.Contains(err.Error(), "in use with another volumeMode") {
			w.T.Fatalf("with a file system: got error %v, want that the volume is in use as a device", err)
		}
		w.publish("pod-1", v)
		w.Until("the other volume is unstaged", func() bool { return !w.inUse(other) })
		w.unpublish("pod-1", v)
		w.nothingLeft()
	})
}

// TestDeviceWithoutRecordOfAnother checks that a block volume that neither a file nor a record names is not unstaged
// while a pod uses it, when another pod that has used it, too, ends.
func TestDeviceWithoutRecordOfAnother(t *testing.T) {
	spoilDevice(t, func(w *world, v *csi.Volume, spoil func()) {
		w.publish("pod-1", v)
		w.Kill()
		if err := os.RemoveAll(filepath.Join(w.root, "nodelet")); err != nil {
			w.T.Fatal(err)
		}
		spoil()
		w.begin()
		w.publish("pod-2", v)
		w.unpublish("pod-2", v)
		files := *v
		files.Block = false
		_, err := w.csi.Publish(w.T.Context(), "pod-3", &files)
		if err == nil || !strings.Contains(err.Error(), "in use with another volumeMode") {
			w.T.Errorf("with a file system: got error %v, want that the volume is in use as a device", err)
		}
		w.Kill() // waits for what unstages
		if n := w.calls("NodeUnstageVolume"); n > 0 {
			w.T.Errorf("unstaged %d times, want never", n)
		}
		w.begin()
		w.publish("pod-1", v)
		w.unpublish("pod-1", v)
		w.nothingLeft()
	})
}

// TestOldRecord checks that what a kubelet has done since a record was written counts more than the record: the volume
// was attached again and mounted with another SELinux label.
func TestOldRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	before, after := w.labelled("a", labelOne), w.labelled("a", labelTwo)
	before.Attachment.UID, after.Attachment.UID = "before", "after"
	w.publish("pod-2", before)
	journal := w.journals()[0]
	old := read(t, journal)
	w.unpublish("pod-2", before)
	w.nothingLeft()
	w.publish("pod-1", after)
	w.Kill()
	write(t, journal, old)
	w.begin()
	w.unpublish("pod-2", before)
	w.publish("pod-3", after)
	if n := w.calls("NodeStageVolume"); n > 3 {
		t.Errorf("staged %d times, want at most once more than before", n)
	}
	w.unpublish("pod-1", after)
	w.unpublish("pod-3", after)
	w.nothingLeft()
}

// TestOldRecordWithoutUses does the same for the record of a volume that waited to be unstaged: the pod that a kubelet
// has started meanwhile is known.
func TestOldRecordWithoutUses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	w.publish("pod-1", v)
	w.fail("NodeUnstageVolume", "Internal", 0)
	w.unpublish("pod-1", v)
	w.Kill()
	old := read(t, w.journals()[0])
	w.begin()
	w.publish("pod-2", v)
	w.Kill()
	w.heal("NodeUnstageVolume")
	write(t, w.journals()[0], old)
	w.begin()
	if got := w.csi.Pods(); len(got) != 1 || got[0] != "pod-2" {
		t.Errorf("got pods %q, want pod-2", got)
	}
	w.unpublish("pod-2", v)
	w.nothingLeft()
}

// TestHiddenPodIsKnownAgain checks that a volume is unstaged when the pod is known that uses it, and has ended.
func TestHiddenPodIsKnownAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	used, other := w.volume("a"), w.volume("b")
	w.publish("pod-1", used)
	w.publish("pod-2", other)
	w.hidePod()
	w.unpublish("pod-2", other)
	w.publish("pod-1", used)
	w.Until("the other volume is unstaged", func() bool { return !w.inUse(other) })
	w.unpublish("pod-1", used)
	w.nothingLeft()
}

// TestHiddenPodIsTakenDown checks that a volume is unstaged when an administrator has taken down the pod that no file
// names: that pod's file or its whole directory is gone, and it or another pod has ended.
func TestHiddenPodIsTakenDown(t *testing.T) {
	t.Parallel()
	for _, whole := range []bool{false, true} {
		w := newWorld(t, nil)
		v, other := w.volume("a"), w.volume("b")
		w.publish("pod-1", v)
		w.publish("pod-2", other)
		w.hidePod()
		w.keeps()
		dir := filepath.Dir(w.podFile())
		gone := w.podFile()
		if whole {
			gone = dir
		}
		if err := errors.Join(unix.Unmount(filepath.Join(dir, "mount"), 0), os.RemoveAll(gone)); err != nil {
			t.Fatal(err)
		}
		if !whole {
			w.unpublish("pod-1", v)
		}
		w.unpublish("pod-2", other)
		w.nothingLeft()
	}
}

// TestDamagedStagingFile checks that a volume of a kubelet is unstaged after its last pod, if the file beside the
// staged volume is damaged or missing and that of the pod is not.
func TestDamagedStagingFile(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(file string) error{
		"damaged": func(file string) error { return os.WriteFile(file, nil, 0o600) },
		"missing": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			v := w.volume("a")
			w.publish("pod-1", v)
			w.Kill()
			pattern := filepath.Join(w.root, "plugins/kubernetes.io/csi", driverName, "*/vol_data.json")
			staged, err := filepath.Glob(pattern)
			if err != nil || len(staged) != 1 {
				t.Fatalf("got %q, %v, want one file", staged, err)
			}
			if err := errors.Join(os.RemoveAll(filepath.Join(w.root, "nodelet")), spoil(staged[0])); err != nil {
				t.Fatal(err)
			}
			w.begin()
			w.unpublish("pod-1", v)
			w.Until("the volume is not in use", func() bool { return !w.inUse(v) })
			if n := w.calls("NodeUnstageVolume"); n != 1 {
				t.Fatalf("unstaged %d times, want once", n)
			}
			w.nothingLeft()
		})
	}
}

// TestUnreadableDeviceLink checks that a link to a block volume that cannot be read just now does not make the volume
// count as unused.
func TestUnreadableDeviceLink(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	links := filepath.Join(root, "pods/pod-1/volumeDevices/kubernetes.io~csi")
	data := filepath.Join(root, "plugins/kubernetes.io/csi/volumeDevices/pv/data")
	if err := errors.Join(os.MkdirAll(links, 0o700), os.MkdirAll(data, 0o700)); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(data, "vol_data.json"), `{"driverName":"d","volumeHandle":"v"}`)
	ownmounts.FUSE(t, links).End() // like a bad disk
	_, err := csi.New(csi.Config{Root: root, Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "pods/pod-1/volumeDevices") {
		t.Errorf("got %v, want the error of the read", err)
	}
}
