package usage

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// diskUse is what a tree takes, by the kernel's count of blocks.
func diskUse(t *testing.T, base, below string) uint64 {
	t.Helper()
	bytes, _, err := walk(place{base, below})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

// TestLocal: layers, logs and volumes on the disk add up; what is in memory does not count, and the runtime is asked only where
// layers are wanted.
func TestLocal(t *testing.T) {
	w := newWorld(t, true)
	pods, err := w.cfg.Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pod := pods[0].Pod
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}})
	if err := os.MkdirAll(filepath.Join(w.root, "pods/u1/volumes/kubernetes.io~secret/secret"), 0o755); err != nil {
		t.Fatal(err)
	}
	got, err := w.Local(t.Context(), []*corev1.Pod{pod}, func(*corev1.Pod) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	l := got[0]
	data := diskUse(t, w.root, "pods/u1/volumes/kubernetes.io~empty-dir/data")
	logs := diskUse(t, w.root, "logs/default_web_u1/app")
	if l.Volumes["data"] != data || data < 10000 || len(l.Volumes) != 1 || l.Logs["app"] != logs || l.Layers["app"] != 4096 || l.Total() != data+logs+4096 {
		t.Errorf("%+v, want %d of data and %d of logs", l, data, logs)
	}
	w.runtime.err = errors.New("no answer")
	if _, err := w.Local(t.Context(), []*corev1.Pod{pod}, func(*corev1.Pod) bool { return true }); err == nil {
		t.Error("a runtime that does not answer is no error")
	}
	if got, err = w.Local(t.Context(), []*corev1.Pod{pod}, func(*corev1.Pod) bool { return false }); err != nil || got[0].Layers != nil {
		t.Errorf("layers that nobody wants: %+v, %v", got, err)
	}
}
