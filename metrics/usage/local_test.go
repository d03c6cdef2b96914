package usage

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func walkNow(base, below string) (Amount, error) {
	return walk(place{base: base, below: below}, time.Now().Add(walkTime))
}

// diskUse returns the usage of a tree as walk measures it.
func diskUse(t *testing.T, base, below string) Amount {
	t.Helper()
	a, err := walkNow(base, below)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func yes(*corev1.Pod) bool { return true }

// pod returns the pod of the world.
func (w *world) pod(t *testing.T) *corev1.Pod {
	t.Helper()
	pods, err := w.cfg.Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return pods[0].Pod
}

// TestLocal checks the sum of layers, logs and volumes on the disk without volumes in memory, and that the runtime is
// asked only for pods whose layers are requested.
func TestLocal(t *testing.T) {
	w := newWorld(t, true)
	pod := w.pod(t)
	secret := corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "secret", VolumeSource: secret})
	if err := os.MkdirAll(filepath.Join(w.root, "pods/u1/volumes/kubernetes.io~secret/secret"), 0o755); err != nil {
		t.Fatal(err)
	}
	got, err := w.Local(t.Context(), []*corev1.Pod{pod}, time.Minute, yes)
	if err != nil {
		t.Fatal(err)
	}
	l := got[0]
	data := diskUse(t, w.root, "pods/u1/volumes/kubernetes.io~empty-dir/data")
	logs := diskUse(t, w.root, "logs/default_web_u1/app")
	want := Amount{Bytes: data.Bytes + logs.Bytes + 4096, Inodes: data.Inodes + logs.Inodes + 3}
	if l.Volumes["data"] != data || data.Bytes < 10000 || len(l.Volumes) != 1 || l.Logs["app"] != logs ||
		l.Total() != want {
		t.Errorf("got %+v, want %+v of data and %+v of logs", l, data, logs)
	}
	w.runtime.err = errors.New("no answer")
	if _, err := w.Local(t.Context(), []*corev1.Pod{pod}, 0, yes); err == nil {
		t.Error("got no error from a runtime that does not answer")
	}
	if got, err = w.Local(t.Context(), []*corev1.Pod{pod}, 0, nil); err != nil || got[0].Layers != nil {
		t.Errorf("without layers: got %+v, %v", got, err)
	}
}

// TestLocalWithoutOnePod checks that a pod for which the runtime has no statistics does not hide the use of others.
func TestLocalWithoutOnePod(t *testing.T) {
	w := newWorld(t, true)
	pod := w.pod(t)
	other := pod.DeepCopy()
	other.UID = "u2"
	w.runtime.noStatsOf = "u2"
	got, err := w.Local(t.Context(), []*corev1.Pod{other, pod}, time.Minute, yes)
	if err != nil {
		t.Fatal(err)
	}
	if got[0].Layers != nil || got[1].Layers["app"].Bytes != 4096 {
		t.Errorf("got layers %v and %v, want none and 4096 bytes", got[0].Layers, got[1].Layers)
	}
	if _, err := w.Local(t.Context(), []*corev1.Pod{other}, time.Minute, yes); err == nil {
		t.Error("got no error from a runtime that has no statistics at all")
	}
}

// TestLocalOfSilentRuntime checks that the usage of other pods is known if the runtime does not answer for one, and
// that a runtime that answers for none is not asked about each pod: a call may take two minutes.
func TestLocalOfSilentRuntime(t *testing.T) {
	w := newWorld(t, true)
	pods := []*corev1.Pod{w.pod(t)}
	for _, uid := range []types.UID{"u2", "u3", "u4"} {
		pod := pods[0].DeepCopy()
		pod.UID = uid
		pods = append(pods, pod)
	}
	slices.Reverse(pods)
	w.runtime.silentFor = []string{"u4"}
	got, err := w.Local(t.Context(), pods, time.Minute, yes)
	if err != nil || got[3].Layers["app"].Bytes != 4096 {
		t.Errorf("one pod without an answer: got %v and %v, want 4096 bytes of the last pod", got, err)
	}
	w.runtime.silentFor, w.runtime.late = []string{"u1", "u2", "u3", "u4"}, 0
	if _, err := w.Local(t.Context(), pods, time.Minute, yes); err == nil || w.runtime.late != 2 {
		t.Errorf("no answer: got error %v after %d calls, want one after 2", err, w.runtime.late)
	}
}

// TestPodFilesCount checks that /etc/hosts, termination logs and the logs of ephemeral containers are counted, and that
// mounts of subPaths are not.
func TestPodFilesCount(t *testing.T) {
	w := newWorld(t, true)
	pod := w.pod(t)
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{
		{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}},
	}
	total := func() Amount {
		all, err := w.Local(t.Context(), []*corev1.Pod{pod}, time.Minute, nil)
		if err != nil {
			t.Fatal(err)
		}
		return all[0].Total()
	}
	const large = 1 << 20
	for _, c := range []struct {
		file   string
		counts bool
	}{
		{"pods/u1/etc-hosts", true},
		{"pods/u1/containers/app/termination-0", true},
		{"logs/default_web_u1/debug/0.log", true},
		{"pods/u1/volume-subpaths/data/app/0/file", false},
		{"pods/u1/volumes/kubernetes.io~nfs/share/file", false},
		{"pods/u1/volumes/kubernetes.io~csi/pv/mount/file", false},
	} {
		before := total()
		tree(t, w.root, map[string]string{c.file: string(make([]byte, large))})
		w.disks = newDisks(w.disks.log)
		if grown := total().Bytes - before.Bytes; grown >= large != c.counts {
			t.Errorf("%s: got a growth of the pod's use by %d bytes, want it to count: %v", c.file, grown, c.counts)
		}
	}
	s, err := w.Summary(t.Context(), Plain)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := *s.Pods[0].EphemeralStorage.UsedBytes, total().Bytes+4096; got != want {
		t.Errorf("ephemeral-storage in the summary: got %d, want %d", got, want)
	}
}
