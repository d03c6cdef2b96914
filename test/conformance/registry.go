package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// registry serves image archives by the distribution protocol, in place of a public registry that cannot be reached: some
// specs insist on a pull.
type registry struct {
	files []*os.File
	blobs map[string]blob   // by digest
	tags  map[string]string // digest of the manifest, by reference
}

type blob struct {
	in       *os.File
	at, size int64
}

// openRegistry reads what is in the archives: OCI layouts as tar, whose manifests are named by full references.
func openRegistry(archives []string) (*registry, error) {
	r := &registry{blobs: map[string]blob{}, tags: map[string]string{}}
	for _, a := range archives {
		if err := r.open(a); err != nil {
			return nil, errors.Join(fmt.Errorf("read %s: %w", a, err), r.close())
		}
	}
	return r, nil
}

func (r *registry) close() (err error) {
	for _, f := range r.files {
		err = errors.Join(err, f.Close())
	}
	return err
}

func (r *registry) open(archive string) error {
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

func (r *registry) names(index io.Reader) error {
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

// serve answers at an address until stop is called; host is the registry that it stands for. It returns its URL.
func (r *registry) serve(address, host string) (url string, stop func() error, err error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: r.handler(host), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	return "http://" + listener.Addr().String(), server.Close, nil
}

func (r *registry) handler(host string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		path := strings.TrimPrefix(req.URL.Path, "/v2/")
		digest := path[strings.LastIndex(path, "/")+1:]
		if name, tag, ok := strings.Cut(path, "/manifests/"); ok {
			if !strings.HasPrefix(tag, "sha256:") {
				digest = r.tags[host+"/"+name+":"+tag]
			}
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		}
		b, there := r.blobs[digest]
		if path != "" && !there {
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
