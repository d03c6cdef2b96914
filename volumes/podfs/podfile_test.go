package podfs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPodFile(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	if _, err := v.ReadPodFile(pod.UID, "fact"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pod without a directory: got %v, want that there is no file", err)
	}
	for _, text := range []string{"a longer fact", "short"} {
		if err := v.WritePodFile(pod.UID, "fact", []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := v.ReadPodFile(pod.UID, "fact"); string(got) != text || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	}
	if _, err := v.ReadPodFile(pod.UID, "none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: got %v, want that there is none", err)
	}
	for _, name := range []string{"", "..", "a/b"} {
		if v.WritePodFile(pod.UID, name, nil) == nil || v.RemovePodFile(pod.UID, name) == nil {
			t.Errorf("%q: got no error, want one", name)
		}
	}
	if err := v.WritePodFile(pod.UID, "other", nil); err != nil {
		t.Error(err)
	}
	for range 2 { // the second time there is none
		if err := v.RemovePodFile(pod.UID, "other"); err != nil {
			t.Error(err)
		}
	}
	left, err := os.ReadDir(filepath.Join(v.podsDir, string(pod.UID)))
	if err != nil || len(left) != 1 {
		t.Errorf("in the directory: got %v, %v, want one", left, err)
	}
	if err := v.RemovePodDir(t.Context(), pod.UID); err != nil {
		t.Error(err)
	}
}

// TestPodFileIsAFile checks that a symbolic link in place of the file is not followed, and a pipe does not block.
func TestPodFileIsAFile(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	if err := v.MakePodDir(pod.UID); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(v.podsDir, string(pod.UID), "fact")); err != nil {
		t.Fatal(err)
	}
	if got, err := v.ReadPodFile(pod.UID, "fact"); err == nil || strings.Contains(string(got), "secret") {
		t.Errorf("read through a link: got %q, %v, want an error", got, err)
	}
}
