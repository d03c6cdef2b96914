package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// image is a container image for several platforms.
type image struct {
	name      string // with tag
	created   time.Time
	platforms []platform
}

// platform is the image's content for one architecture.
type platform struct {
	arch  string
	files []file
}

// descriptor is the OCI content descriptor, image-spec v1.1.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    map[string]string `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

const (
	mediaIndex    = "application/vnd.oci.image.index.v1+json"
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// write writes the image as a tar of an OCI image layout with one index of all platforms. For "docker load", the file
// manifest.json names the image of each platform NAME-ARCH.
func (i image) write(w io.Writer) error {
	l := &layout{tar: tar.NewWriter(w), when: i.created}
	var manifests []descriptor
	var docker []map[string]any
	for _, p := range i.platforms {
		layer, diffID, err := i.layer(p)
		if err != nil {
			return err
		}
		layerDesc := l.blob(mediaLayer, layer)
		config := l.json(mediaConfig, i.config(p, diffID))
		manifest := l.json(mediaManifest, map[string]any{
			"schemaVersion": 2, "mediaType": mediaManifest, "config": config, "layers": []descriptor{layerDesc},
		})
		manifest.Platform = map[string]string{"os": "linux", "architecture": p.arch}
		manifests = append(manifests, manifest)
		docker = append(docker, map[string]any{
			"Config": blobPath(config), "Layers": []string{blobPath(layerDesc)}, "RepoTags": []string{i.name + "-" + p.arch},
		})
	}
	index := l.json(mediaIndex, map[string]any{"schemaVersion": 2, "mediaType": mediaIndex, "manifests": manifests})
	index.Annotations = map[string]string{
		"io.containerd.image.name":          i.name,
		"org.opencontainers.image.ref.name": i.name,
	}
	l.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	l.jsonFile("index.json", map[string]any{"schemaVersion": 2, "mediaType": mediaIndex, "manifests": []descriptor{index}})
	l.jsonFile("manifest.json", docker)
	return errors.Join(l.err, l.tar.Close())
}

// layer returns the compressed root file system and the digest of the uncompressed one.
func (i image) layer(p platform) (body []byte, diffID string, err error) {
	var plain, packed bytes.Buffer
	if err := writeTar(&plain, p.files, "", i.created); err != nil {
		return nil, "", err
	}
	diffID = digest(plain.Bytes())
	gz, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, "", err
	}
	_, err = plain.WriteTo(gz)
	err = errors.Join(err, gz.Close())
	return packed.Bytes(), diffID, err
}

func (i image) config(p platform, diffID string) map[string]any {
	return map[string]any{
		"created": i.created, "architecture": p.arch, "os": "linux",
		"config": map[string]any{
			"Entrypoint": []string{"/usr/bin/nodelet"},
			"Labels": map[string]string{
				"org.opencontainers.image.source":   "https://github.com/nodelet/nodelet",
				"org.opencontainers.image.licenses": "Apache-2.0",
			},
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{diffID}},
	}
}

// layout writes an OCI image layout and keeps the first error.
type layout struct {
	tar  *tar.Writer
	when time.Time
	err  error
}

func (l *layout) file(name string, body []byte) {
	if l.err == nil {
		l.err = l.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(body)), ModTime: l.when})
	}
	if l.err == nil {
		_, l.err = l.tar.Write(body)
	}
}

func (l *layout) blob(mediaType string, body []byte) descriptor {
	d := descriptor{MediaType: mediaType, Digest: digest(body), Size: int64(len(body))}
	l.file(blobPath(d), body)
	return d
}

func (l *layout) json(mediaType string, v any) descriptor {
	body, err := json.Marshal(v)
	l.err = errors.Join(l.err, err)
	return l.blob(mediaType, body)
}

func (l *layout) jsonFile(name string, v any) {
	body, err := json.Marshal(v)
	l.err = errors.Join(l.err, err)
	l.file(name, body)
}

func digest(body []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(body)) }

func blobPath(d descriptor) string { return "blobs/sha256/" + d.Digest[len("sha256:"):] }
