package registry

import (
	"archive/tar"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
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
	r, err := Open([]string{file})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for host, name := range map[string]string{"registry.example.org": "a/b", "": "registry.example.org/a/b"} {
		url, stop, err := r.Serve("127.0.0.1:0", host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = stop() })
		prefix := "/v2/" + name
		expect(t, url+"/v2/", http.StatusOK, "")
		expect(t, url+prefix+"/manifests/1", http.StatusOK, string(manifest))
		expect(t, url+prefix+"/manifests/sha256:"+digest, http.StatusOK, string(manifest))
		expect(t, url+prefix+"/blobs/sha256:"+digest, http.StatusOK, string(manifest))
		expect(t, url+prefix+"/manifests/2", http.StatusNotFound, "404 page not found\n")
	}
	if refs := r.References(); !slices.Equal(refs, []string{"registry.example.org/a/b:1"}) {
		t.Errorf("references %q", refs)
	}
}

func expect(t *testing.T, url string, status int, want string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status || string(body) != want {
		t.Errorf("GET %s: got %s %q %v, want %d %q", url, resp.Status, body, err, status, want)
	}
}
