package main

import (
	"archive/tar"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

func TestRegistryServesArchives(t *testing.T) {
	manifest := []byte(`{"schemaVersion": 2}`)
	digest := fmt.Sprintf("%x", sha256.Sum256(manifest))
	file := filepath.Join(t.TempDir(), "image.tar")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	for name, body := range map[string][]byte{
		"blobs/sha256/" + digest: manifest,
		"index.json": []byte(`{"manifests": [{"digest": "sha256:` + digest +
			`", "annotations": {"io.containerd.image.name": "registry.example.org/a/b:1"}}]}`),
	} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(body))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := openRegistry([]string{file})
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	url, stop, err := r.serve("127.0.0.1", "registry.example.org")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for path, want := range map[string]string{
		"/v2/": "", "/v2/a/b/manifests/1": string(manifest), "/v2/a/b/manifests/sha256:" + digest: string(manifest),
		"/v2/a/b/blobs/sha256:" + digest: string(manifest),
	} {
		resp, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || string(body) != want {
			t.Errorf("GET %s: %s %q %v, want %q", path, resp.Status, body, err, want)
		}
	}
	resp, err := http.Get(url + "/v2/a/b/manifests/2")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("a tag that nobody knows: %s", resp.Status)
	}
}
