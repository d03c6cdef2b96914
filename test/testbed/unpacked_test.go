package testbed

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnpackedImages checks that a node takes unpacked images and runs without their archives, and that it imports the
// archives that are not among them.
func TestUnpackedImages(t *testing.T) {
	for _, runtime := range []string{roleContainerd, roleCRIO} {
		t.Run(runtime, func(t *testing.T) {
			unpackedImages(t, Options{Name: "t-unpacked", Runtime: runtime, Progress: testWriter{t}})
		})
	}
}

func unpackedImages(t *testing.T, o Options) {
	needBuilt(t, o)
	root := t.TempDir()
	t.Setenv(StateEnv, root)
	cache, err := OpenCache(o.Progress)
	if err != nil {
		t.Fatal(err)
	}
	archives, err := cache.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	unpacked, agnhost := archives[:len(archives)-1], archives[len(archives)-1]
	dir := filepath.Join(root, ".images")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := cache.UnpackImages(t.Context(), o.Runtime, unpacked, dir); err != nil {
		t.Fatal(err)
	}
	t.Setenv(UnpackedEnv, dir)
	n := ForTest(t, o).Nodes[0]
	if _, err := os.Stat(filepath.Join(dir, o.Runtime)); !os.IsNotExist(err) {
		t.Errorf("the unpacked images: got %v, want them to be moved to the node", err)
	}
	for _, archive := range unpacked {
		if err := n.Runtime.ImportImage(t.Context(), filepath.Join(root, filepath.Base(archive))); err != nil {
			t.Errorf("import of unpacked images: got %v, want no look at the archive", err)
		}
	}
	if err := n.Runtime.ImportImage(t.Context(), filepath.Join(root, filepath.Base(agnhost))); err == nil {
		t.Error("import of another archive, which does not exist: got no error, want one")
	}
	images, err := n.Runtime.Crictl(t.Context(), "images")
	for _, name := range []string{"/pause", "/busybox", "/agnhost"} {
		if err != nil || !strings.Contains(images, name) {
			t.Errorf("images of the runtime: got %v, want %s among them:\n%s", err, name, images)
		}
	}
}
