package usage

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// newCRIOWorld returns a world with CRI-O, the writable layer of the container app, and the directory that CRI-O names
// for it, below the root.
func newCRIOWorld(t *testing.T, dir string) *world {
	t.Helper()
	w := newWorld(t, true)
	w.cfg.WalkLayers = func() bool { return true }
	tree(t, w.root, map[string]string{"overlay/1/diff/file": strings.Repeat("x", 1<<20)})
	w.runtime.layerDirs = map[string]string{appID: ""}
	if dir != "" {
		w.runtime.layerDirs[appID] = filepath.Join(w.root, dir)
	}
	return w
}

// startMore starts another container of the pod.
func (w *world) startMore(id string) {
	w.runtime.more = append(w.runtime.more, &runtimeapi.Container{
		Id: id, Metadata: &runtimeapi.ContainerMetadata{Name: id}, Labels: map[string]string{podutil.LabelPodUID: "u1"},
		State: runtimeapi.ContainerState_CONTAINER_RUNNING,
	})
}

// TestLayersAreWalked checks that the sizes of writable layers are known while CRI-O gives no statistics, also if
// a container has just been removed.
func TestLayersAreWalked(t *testing.T) {
	w := newCRIOWorld(t, "overlay/1/diff")
	w.runtime.noStats, w.runtime.noStatsOf = true, "u1" // because it is stopping a container
	w.startMore("removed")
	got, err := w.Local(t.Context(), []*corev1.Pod{w.pod(t)}, time.Minute, yes)
	want := diskUse(t, w.root, "overlay/1/diff")
	if err != nil || len(got[0].Layers) != 1 || got[0].Layers["app"] != want || want.Bytes < 1<<20 {
		t.Errorf("got the layers %+v, %v, want %+v of app", got[0].Layers, err, want)
	}
	s, err := w.Summary(t.Context(), Plain)
	if err != nil {
		t.Fatal(err)
	}
	if root := s.Pods[0].Containers[0].Rootfs; root.UsedBytes == nil || *root.UsedBytes != want.Bytes {
		t.Errorf("the summary: got %+v, want %d used bytes", root, want.Bytes)
	}
}

// TestLayersWithoutDirectories checks that CRI-O is asked for the sizes if it does not name the directories, as with
// a storage driver without any, or if there is none of that name.
func TestLayersWithoutDirectories(t *testing.T) {
	for _, dir := range []string{"", "overlay/2/diff"} {
		w := newCRIOWorld(t, dir)
		got, err := w.Local(t.Context(), []*corev1.Pod{w.pod(t)}, time.Minute, yes)
		if err != nil || got[0].Layers["app"].Bytes != 4096 {
			t.Errorf("%q: got the layers %+v, %v, want 4096 bytes of app", dir, got[0].Layers, err)
		}
		s, err := w.Summary(t.Context(), Plain)
		if err != nil {
			t.Fatal(err)
		}
		if root := s.Pods[0].Containers[0].Rootfs; root.UsedBytes == nil || *root.UsedBytes != 4096 {
			t.Errorf("%q: the summary: got %+v, want 4096 used bytes", dir, root)
		}
	}
}

// TestLayersOfSilentCRIO checks that CRI-O is not asked about each container if it does not answer, because a call may
// take two minutes, and that layers are not taken for small then.
func TestLayersOfSilentCRIO(t *testing.T) {
	w := newCRIOWorld(t, "overlay/1/diff")
	w.runtime.layerErr = status.Error(codes.DeadlineExceeded, "no answer")
	w.startMore("second")
	w.startMore("third")
	_, err := w.Local(t.Context(), []*corev1.Pod{w.pod(t)}, time.Minute, yes)
	if status.Code(err) != codes.DeadlineExceeded || w.runtime.late != 1 {
		t.Errorf("got error %v after %d calls, want that of the first of two", err, w.runtime.late)
	}
}
