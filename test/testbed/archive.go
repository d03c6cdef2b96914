package testbed

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path"
	"runtime"
	"slices"
	"time"
)

// image is a container image with one layer.
type image struct {
	refs       []string // full references, such as "docker.io/library/busybox:1.37"
	files      []imageFile
	entrypoint []string
	cmd        []string
	env        []string
	user       string
	// apart: each reference is an image of its own, with the same files. A runtime that knows an image by several
	// references reports any of them as that of a container.
	apart bool
}

// imageFile is a directory if isDir is set, a symbolic link if link is set, and else a file.
type imageFile struct {
	name  string // absolute
	mode  int64
	body  []byte
	link  string
	isDir bool
}

// descriptor is the OCI content descriptor.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    *ociPlatform      `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type ociPlatform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type ociConfig struct {
	ociPlatform
	Config struct {
		Entrypoint []string          `json:"Entrypoint,omitempty"`
		Cmd        []string          `json:"Cmd,omitempty"`
		Env        []string          `json:"Env,omitempty"`
		User       string            `json:"User,omitempty"`
		Labels     map[string]string `json:"Labels,omitempty"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

type ociManifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

type ociIndex struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

const (
	mediaIndex    = "application/vnd.oci.image.index.v1+json"
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar"
)

// refAnnotation has the full image reference. containerd's import uses it as the name of the image.
const refAnnotation = "io.containerd.image.name"

// write writes the image as a tar of an OCI image layout (OCI image-spec v1.1). It does not compress the layer,
// because only runtimes on the same disk read it. Equal images produce equal bytes.
func (img image) write(w io.Writer) error {
	out := &layout{tar: tar.NewWriter(w)}
	layer, err := img.layer()
	if err != nil {
		return err
	}
	layerDesc := out.blob(mediaLayer, layer)
	index := ociIndex{SchemaVersion: 2, MediaType: mediaIndex}
	var manifest descriptor
	for i, ref := range img.refs {
		switch {
		case img.apart:
			manifest = img.manifest(out, layerDesc, map[string]string{refAnnotation: ref})
		case i == 0:
			manifest = img.manifest(out, layerDesc, nil)
		}
		manifest.Annotations = map[string]string{refAnnotation: ref}
		index.Manifests = append(index.Manifests, manifest)
	}
	out.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	b, err := json.Marshal(index)
	if err != nil {
		return err
	}
	out.file("index.json", b)
	if out.err != nil {
		return fmt.Errorf("write image %s: %w", img.refs[0], out.err)
	}
	return out.tar.Close()
}

// manifest adds the image's configuration and manifest to a layout, and returns the manifest's descriptor.
func (img image) manifest(out *layout, layer descriptor, labels map[string]string) descriptor {
	var c ociConfig
	c.ociPlatform = ociPlatform{Architecture: runtime.GOARCH, OS: "linux"}
	c.Config.Entrypoint, c.Config.Cmd = img.entrypoint, img.cmd
	c.Config.Env, c.Config.User = img.env, img.user
	c.Config.Labels = labels
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{layer.Digest}
	return out.json(mediaManifest, ociManifest{
		SchemaVersion: 2,
		MediaType:     mediaManifest,
		Config:        out.json("application/vnd.oci.image.config.v1+json", c),
		Layers:        []descriptor{layer},
	})
}

// served returns the image as files below dir, in the layout of agnhost's fake registry: manifests and blobs by
// digest, and a file for the tag with the digest of its index.
func (img image) served(dir, tag string) ([]imageFile, error) {
	out := &layout{tar: tar.NewWriter(io.Discard), kept: map[string][]byte{}}
	layer, err := img.layer()
	if err != nil {
		return nil, err
	}
	manifest := img.manifest(out, out.blob(mediaLayer, layer), nil)
	manifest.Platform = &ociPlatform{Architecture: runtime.GOARCH, OS: "linux"}
	index := out.json(mediaIndex, ociIndex{SchemaVersion: 2, MediaType: mediaIndex, Manifests: []descriptor{manifest}})
	files := []imageFile{{name: path.Join(dir, "manifests", tag), mode: 0o644, body: []byte(index.Digest + "\n")}}
	for _, digest := range slices.Sorted(maps.Keys(out.kept)) {
		kind := "blobs"
		if "sha256:"+digest == index.Digest || "sha256:"+digest == manifest.Digest {
			kind = "manifests"
		}
		name := path.Join(dir, kind, "sha256", digest[:2], digest, "data")
		files = append(files, imageFile{name: name, mode: 0o644, body: out.kept[digest]})
	}
	return files, out.err
}

// layer returns the image's root file system as a tar. Root owns all files. Two files of one name are an error, as for
// CRI-O.
func (img image) layer() ([]byte, error) {
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	have := map[string]bool{}
	for _, f := range img.files {
		name := path.Clean(f.name)
		if have[name] {
			return nil, fmt.Errorf("pack %s: the image has two files of this name", name)
		}
		have[name] = true
		h := &tar.Header{
			Name:     name[1:],
			Mode:     f.mode,
			ModTime:  time.Unix(0, 0),
			Size:     int64(len(f.body)),
			Typeflag: tar.TypeReg,
		}
		switch {
		case f.isDir:
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		case f.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
		}
		if err := tw.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.name, err)
		}
		if _, err := tw.Write(f.body); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.name, err)
		}
	}
	err := tw.Close() // it writes the end of the archive
	return buf.Bytes(), err
}

// layout writes an OCI layout and keeps the first error. If kept is not nil, it also keeps the blobs by digest.
type layout struct {
	tar  *tar.Writer
	err  error
	kept map[string][]byte
}

func (l *layout) file(name string, body []byte) {
	if l.err == nil {
		l.err = l.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(body)), ModTime: time.Unix(0, 0)})
	}
	if l.err == nil {
		_, l.err = l.tar.Write(body)
	}
}

func (l *layout) blob(mediaType string, body []byte) descriptor {
	sum := sha256.Sum256(body)
	digest := hex.EncodeToString(sum[:])
	l.file("blobs/sha256/"+digest, body)
	if l.kept != nil {
		l.kept[digest] = body
	}
	return descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: int64(len(body))}
}

func (l *layout) json(mediaType string, v any) descriptor {
	b, err := json.Marshal(v)
	if err != nil && l.err == nil {
		l.err = err
	}
	return l.blob(mediaType, b)
}
