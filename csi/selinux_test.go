package csi_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/csi"
)

const (
	labelOne = "system_u:object_r:container_file_t:s0:c1,c2"
	labelTwo = "system_u:object_r:container_file_t:s0:c3,c4"
)

// labelled is a volume that is to be mounted with a label.
func (w *world) labelled(name, label string) *csi.Volume {
	w.T.Helper()
	v := w.volume(name)
	v.MountOptions, v.SELinux.Mount = []string{"noatime"}, label
	return v
}

// flags: the driver was last asked to stage and to publish a volume with these flags.
func (w *world) flags(id string, want ...string) {
	w.T.Helper()
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume"} {
		if got := w.driver.MountFlags(method, id); !slices.Equal(got, want) {
			w.T.Errorf("%s got the mount flags %q, want %q", method, got, want)
		}
	}
}

// TestSELinuxLabel checks that a volume is staged and published with its label, which a restarted agent and a kubelet
// recognize.
func TestSELinuxLabel(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v, plain := w.labelled("a", labelOne), w.labelled("b", "")
	if p := w.publish("pod-1", v); !p.Labelled {
		t.Errorf("got %+v, want a label", p)
	}
	w.flags("vol-a", "noatime", `context="`+labelOne+`"`)
	if p := w.publish("pod-1", plain); p.Labelled {
		t.Errorf("got %+v, want no label", p)
	}
	w.flags("vol-b", "noatime")
	for _, pattern := range []string{"pods/pod-1/volumes/kubernetes.io~csi/pv-a/vol_data.json",
		"plugins/kubernetes.io/csi/" + driverName + "/*/vol_data.json"} {
		found, err := filepath.Glob(filepath.Join(w.root, pattern))
		n := 0
		for _, path := range found {
			n += strings.Count(read(t, path), `"seLinuxMountContext":"`+labelOne+`"`)
		}
		if err != nil || n != 1 {
			t.Errorf("%s: got the label in %d of %q, %v, want it in 1", pattern, n, found, err)
		}
	}
	w.restart()
	calls := w.calls("NodePublishVolume")
	if p := w.publish("pod-1", v); !p.Labelled || w.calls("NodePublishVolume") != calls {
		t.Errorf("after a restart: got %+v, want the label and no change", p)
	}
	w.Kill()
	if err := os.RemoveAll(filepath.Join(w.root, "nodelet/csi")); err != nil {
		t.Fatal(err)
	}
	w.begin()
	w.publish("pod-2", v)
	w.flags("vol-a", "noatime", `context="`+labelOne+`"`)
	for _, one := range []*csi.Volume{v, plain} {
		w.unpublish("pod-1", one)
	}
	w.unpublish("pod-2", v)
	w.nothingLeft()
}

// TestSELinuxLabelOfOnePod checks that of a volume with ReadWriteOncePod in use, a pod with another label hears of the
// label first, which is counted, and a pod with the same one that the volume is in use.
func TestSELinuxLabelOfOnePod(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	one, two := w.labelled("a", labelOne), w.labelled("a", labelTwo)
	one.AccessMode, two.AccessMode = corev1.ReadWriteOncePod, corev1.ReadWriteOncePod
	w.publish("pod-1", one)
	_, err := w.csi.Publish(t.Context(), "pod-2", two)
	if _, ok := errors.AsType[*csi.LabelError](err); !ok {
		t.Errorf("another label: got error %v, want one about the label", err)
	}
	if _, err = w.csi.Publish(t.Context(), "pod-2", one); err == nil || !strings.Contains(err.Error(), "another pod") {
		t.Errorf("the same label: got error %v, want that another pod uses the volume", err)
	}
	w.unpublish("pod-1", one)
	w.publish("pod-2", two)
	w.unpublish("pod-2", two)
	w.nothingLeft()
}

// TestSELinuxLabelsWanted checks what is said of a volume that is mounted without a label: which pod is the first to
// use it, and which wants another label than that one. A restarted agent says it once more, by the order in which it
// sees the pods.
func TestSELinuxLabelsWanted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	publish := func(pod types.UID, wanted *string) (heard []string) {
		v := w.labelled("a", "")
		v.SELinux.Wanted = wanted
		v.SELinux.Begun = func(first, conflict bool) {
			heard = append(heard, fmt.Sprintf("%t %t", first, conflict))
		}
		w.publish(pod, v)
		return heard
	}
	expect := func(when string, got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", when, got, want)
		}
	}
	expect("the first pod", publish("pod-1", new(labelOne)), "true false")
	expect("the first pod again", publish("pod-1", new(labelOne)))
	expect("the same label", publish("pod-2", new(labelOne)), "false false")
	expect("another label", publish("pod-3", new(labelTwo)), "false true")
	expect("not known", publish("pod-4", nil), "false false")
	w.restart()
	expect("the first pod after a restart", publish("pod-1", new(labelOne)), "true false")
	expect("the first pod after a restart, again", publish("pod-1", new(labelOne)))
	expect("another label, after a restart", publish("pod-3", new(labelTwo)), "false true")
	expect("no label, after a restart", publish("pod-5", new("")), "false true")
	for _, pod := range []types.UID{"pod-1", "pod-2", "pod-3", "pod-4", "pod-5"} {
		w.unpublish(pod, w.labelled("a", ""))
	}
	expect("the first pod after those", publish("pod-6", new(labelTwo)), "true false")
	w.unpublish("pod-6", w.labelled("a", ""))
	w.nothingLeft()
}

// TestSELinuxLabelsConflict checks that a volume has one label at a time. A pod with another label is refused while
// it is in use; afterwards it is staged again with that label.
func TestSELinuxLabelsConflict(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	one, two := w.labelled("a", labelOne), w.labelled("a", labelTwo)
	w.publish("pod-1", one)
	w.publish("pod-2", one)
	_, err := w.csi.Publish(t.Context(), "pod-3", two)
	conflict, ok := errors.AsType[*csi.LabelError](err)
	if !ok || conflict.Has != labelOne || conflict.Wanted != labelTwo {
		t.Errorf("got %v", err)
	}
	if used := w.csi.Used("pod-3"); len(used) > 0 {
		t.Errorf("volumes of a pod that was refused: got %q, want none", used)
	}
	if p := w.publish("pod-1", two); !p.Labelled || w.calls("NodePublishVolume") != 2 {
		t.Errorf("pod that has the volume: got %+v, want the label and no change", p)
	}
	w.fail("NodeUnstageVolume", "Internal", 0)
	w.unpublish("pod-1", one)
	w.unpublish("pod-2", one)
	if _, err := w.csi.Publish(t.Context(), "pod-3", two); err == nil ||
		!strings.Contains(err.Error(), "waiting for unmount of volume") {
		t.Errorf("got %v", err)
	}
	if len(w.csi.InUse()) != 1 {
		t.Error("a volume that is still staged: got that it is not in use, want that it is")
	}
	w.heal("NodeUnstageVolume")
	if p := w.publish("pod-3", two); !p.Labelled || w.calls("NodePublishVolume") != 3 {
		t.Errorf("got %+v, want the label and a call of the driver", p)
	}
	w.flags("vol-a", "noatime", `context="`+labelTwo+`"`)
	w.unpublish("pod-3", two)
	w.nothingLeft()
}
