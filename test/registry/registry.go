// Package registry serves image archives with the OCI distribution protocol, instead of public registries that tests
// cannot reach. Tests use it where a runtime must pull an image.
package registry

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// Registry serves images from open archives.
type Registry struct {
	files []*os.File
	blobs map[string]blob   // by digest
	tags  map[string]string // digest of the manifest, by reference
}

type blob struct {
	in       *os.File
	at, size int64
}

// Open reads what is in the archives: OCI layouts as tar, whose manifests are named by full references.
func Open(archives []string) (*Registry, error) {
	r := &Registry{blobs: map[string]blob{}, tags: map[string]string{}}
	for _, a := range archives {
		if err := r.open(a); err != nil {
			return nil, errors.Join(fmt.Errorf("read %s: %w", a, err), r.Close())
		}
	}
	return r, nil
}

// Close closes the archives. Requests fail after that.
func (r *Registry) Close() (err error) {
	for _, f := range r.files {
		err = errors.Join(err, f.Close())
	}
	return err
}

func (r *Registry) open(archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	r.files = append(r.files, f)
	for t := tar.NewReader(f); ; {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if digest, ok := strings.CutPrefix(h.Name, "blobs/sha256/"); ok {
			at, err := f.Seek(0, io.SeekCurrent)
			if err != nil {
				return err
			}
			r.blobs["sha256:"+digest] = blob{f, at, h.Size}
		}
		if h.Name == "index.json" {
			if err := r.names(t); err != nil {
				return err
			}
		}
	}
}

func (r *Registry) names(index io.Reader) error {
	var all struct {
		Manifests []struct {
			Digest      string
			Annotations map[string]string
		}
	}
	if err := json.NewDecoder(index).Decode(&all); err != nil {
		return err
	}
	for _, m := range all.Manifests {
		r.tags[m.Annotations["io.containerd.image.name"]] = m.Digest
	}
	return nil
}

// References returns the full names of the images in sorted order.
func (r *Registry) References() []string { return slices.Sorted(maps.Keys(r.tags)) }

// Serve answers at an address, host:port, until stop is called, and gives its URL. host is the registry that it
// stands for; if it is empty, each path begins with the registry that is meant.
func (r *Registry) Serve(address, host string) (url string, stop func() error, err error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: r.handler(host), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	return "http://" + listener.Addr().String(), server.Close, nil
}

func (r *Registry) handler(host string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		what := strings.TrimPrefix(req.URL.Path, "/v2/")
		digest := path.Base(what)
		if name, tag, ok := strings.Cut(what, "/manifests/"); ok {
			if !strings.HasPrefix(tag, "sha256:") {
				digest = r.tags[path.Join(host, name)+":"+tag]
			}
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		}
		b, there := r.blobs[digest]
		if what != "" && !there {
			http.NotFound(w, req)
			return
		}
		w.Header().Set("Docker-Content-Digest", digest)
		var body io.ReadSeeker = bytes.NewReader(nil)
		if there {
			body = io.NewSectionReader(b.in, b.at, b.size)
		}
		http.ServeContent(w, req, "", time.Time{}, body)
	})
}
