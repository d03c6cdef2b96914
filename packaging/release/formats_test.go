package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// testOptions are those of a pre-release; its version needs changes for Debian and RPM.
func testOptions() options {
	return options{version: "1.2.3-rc.1", commit: "0123456789012345678901234567890123456789", epoch: 1750000000}
}

func testParts() parts {
	return parts{
		unit:        []byte("[Unit]\n"),
		kubeletUnit: []byte("[Unit]\n"),
		completion:  map[string][]byte{"bash": []byte("complete\n"), "zsh": []byte("#compdef\n"), "fish": []byte("\n")},
		config:      []byte("kind: KubeletConfiguration\n"),
		defaults:    []byte("NODELET_ARGS=\n"),
		license:     []byte("Apache License\n"),
		kubernetes:  "1.37.2",
		licenses: licenses{{
			path:    "example.com/m",
			version: "v1.0.0",
			spdx:    "MIT",
			notices: []notice{{name: "LICENSE", text: "text of the license"}},
		}},
	}
}

// write writes an artefact to a file and returns its path.
func write(t *testing.T, name string, f func(io.Writer) error) string {
	t.Helper()
	dir := t.TempDir()
	if err := writeArtefact(dir, name, f); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// need skips the test where a program of the distribution is not installed. On a machine that must run every test it
// fails it, as test/programs of nodelet does.
func need(t *testing.T, program string) {
	t.Helper()
	const require = "NODELET_TEST_PROGRAMS"
	_, err := exec.LookPath(program)
	switch {
	case err == nil:
	case os.Getenv(require) == "":
		t.Skipf("needs %s: %v", program, err)
	default:
		t.Fatalf("needs %s, and %s is set: %v", program, require, err)
	}
}

// tool runs a program of the distribution.
func tool(t *testing.T, program string, args ...string) string {
	t.Helper()
	need(t, program)
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
	return string(out)
}

// TestDeb has dpkg-deb read a package: its fields, its files with their modes, and its configuration files.
func TestDeb(t *testing.T) {
	deb := write(t, "nodelet.deb", nodeletDeb(testOptions(), testParts(), "amd64", []byte("program")).write)
	fields := tool(t, "dpkg-deb", "--field", deb, "Package", "Version", "Architecture")
	if want := "Package: nodelet\nVersion: 1.2.3~rc.1\nArchitecture: amd64\n"; fields != want {
		t.Errorf("got fields %q, want %q", fields, want)
	}
	conf := tool(t, "dpkg-deb", "--info", deb, "conffiles")
	if conf != "/etc/nodelet/config.yaml\n" {
		t.Errorf("got configuration files %q", conf)
	}
	root := t.TempDir()
	tool(t, "dpkg-deb", "--extract", deb, root)
	checkInstalled(t, root)
	control := t.TempDir()
	tool(t, "dpkg-deb", "--control", deb, control)
	sums := exec.Command("md5sum", "--check", "--quiet", filepath.Join(control, "md5sums"))
	sums.Dir = root
	if out, err := sums.CombinedOutput(); err != nil {
		t.Errorf("check md5sums: %v\n%s", err, out)
	}
}

// TestFileVersion checks that the name of a package of a pre-release is one that GitHub does not change.
func TestFileVersion(t *testing.T) {
	for version, want := range map[string]string{"1.2.3-rc.1": "1.2.3.rc.1", "1.2.3": "1.2.3"} {
		if got := fileVersion(version); got != want {
			t.Errorf("%s: got %q, want %q", version, got, want)
		}
	}
}

// TestKubeletDeb checks the links of the package that installs nodelet as the kubelet, and what it provides.
func TestKubeletDeb(t *testing.T) {
	deb := write(t, "nodelet-kubelet.deb", kubeletDeb(testOptions(), testParts(), "arm64").write)
	fields := tool(t, "dpkg-deb", "--field", deb, "Architecture", "Depends", "Provides")
	if want := "Architecture: arm64\nDepends: nodelet\nProvides: kubelet (= 1.37.2)\n"; fields != want {
		t.Errorf("got fields %q, want %q", fields, want)
	}
	root := t.TempDir()
	tool(t, "dpkg-deb", "--extract", deb, root)
	for link, want := range map[string]string{
		"usr/bin/kubelet": "nodelet",
		"usr/share/bash-completion/completions/kubelet":    "nodelet",
		"usr/share/fish/vendor_completions.d/kubelet.fish": "nodelet.fish",
		"usr/share/man/man8/kubelet.8.gz":                  "nodelet.8.gz",
	} {
		if got, err := os.Readlink(filepath.Join(root, link)); err != nil || got != want {
			t.Errorf("%s: got link %q, %v, want %s", link, got, err, want)
		}
	}
}

// checkInstalled checks the files that a package has unpacked below root.
func checkInstalled(t *testing.T, root string) {
	t.Helper()
	for name, want := range map[string]struct {
		body string
		mode os.FileMode
	}{
		"usr/bin/nodelet":                         {"program", 0o755},
		"etc/nodelet/config.yaml":                 {"kind: KubeletConfiguration\n", 0o644},
		"usr/lib/systemd/system/nodelet.service":  {"[Unit]\n", 0o644},
		"usr/share/man/man8/nodelet.8.gz":         {string(compressed(nil)), 0o644},
		"usr/share/man/man5/nodelet-config.5.gz":  {string(compressed(nil)), 0o644},
		"usr/share/bash-completion/completions/.": {"", 0o755 | os.ModeDir},
	} {
		info, err := os.Stat(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if info.Mode() != want.mode {
			t.Errorf("%s: got mode %v, want %v", name, info.Mode(), want.mode)
		}
		if info.IsDir() {
			continue
		}
		if body, err := os.ReadFile(filepath.Join(root, name)); err != nil || string(body) != want.body {
			t.Errorf("%s: got %q, %v, want %q", name, body, err, want.body)
		}
	}
}

// TestRPM has rpm read a package: its fields, its configuration files and its digests, and unpacks it.
func TestRPM(t *testing.T) {
	rpm := write(t, "nodelet.rpm", nodeletRPM(testOptions(), testParts(), "arm64", []byte("program")).write)
	got := tool(t, "rpm", "-qp", "--queryformat", "%{NAME} %{VERSION}-%{RELEASE} %{ARCH} %{OS} %{LICENSE}", rpm)
	if want := "nodelet 1.2.3~rc.1-1 aarch64 linux Apache-2.0 AND MIT"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if conf := tool(t, "rpm", "-qpc", rpm); conf != "/etc/default/nodelet\n/etc/nodelet/config.yaml\n" {
		t.Errorf("got configuration files %q", conf)
	}
	scripts := tool(t, "rpm", "-qp", "--scripts", rpm)
	for _, want := range []string{"postinstall", "preuninstall", "postuninstall"} {
		if !strings.Contains(scripts, want) {
			t.Errorf("got no script %s, want it in %s", want, scripts)
		}
	}
	if out := tool(t, "rpm", "-K", "--nosignature", rpm); !strings.Contains(out, "digests OK") {
		t.Errorf("got %q, want digests OK", out)
	}
	root := t.TempDir()
	tool(t, "sh", "-c", `rpm2archive - < "$1" > "$2/x.tgz" && tar -C "$2" -xzf "$2/x.tgz"`, "sh", rpm, root)
	checkInstalled(t, root)
}

// TestArchive checks that the .tar.gz has one directory with the program, the notices, the documents, and the tools for
// many nodes.
func TestArchive(t *testing.T) {
	o, p := testOptions(), testParts()
	var err error
	if p.tools, err = readTools("../.."); err != nil {
		t.Fatal(err)
	}
	for _, f := range p.tools {
		if script := f.path == "rollout/nodelet-rollout"; f.mode != 0o644 && !script || f.mode != 0o755 && script {
			t.Errorf("%s: got mode %o", f.path, f.mode)
		}
		if strings.Contains(f.path, "test") {
			t.Errorf("got %s, want no tests", f.path)
		}
	}
	files := untar(t, write(t, "a.tar.gz",
		archive{dir: "nodelet-1", files: archiveFiles(p, []byte("program")), when: o.when()}.write), true)
	for _, name := range []string{"nodelet-1/nodelet", "nodelet-1/LICENSE", "nodelet-1/default",
		"nodelet-1/man/", "nodelet-1/man/nodelet.8", "nodelet-1/rollout/nodelet-rollout",
		"nodelet-1/rollout/ansible/roles/nodelet/tasks/main.yaml",
		"nodelet-1/prometheus/nodelet.rules.yaml", "nodelet-1/prometheus/nodelet.dashboard.json"} {
		if _, ok := files[name]; !ok {
			t.Errorf("got no file %s, want it", name)
		}
	}
	if got := string(files["nodelet-1/THIRD-PARTY-LICENSES.txt"]); !strings.Contains(got, "text of the license") {
		t.Errorf("got notices %q", got)
	}
}

func untar(t *testing.T, path string, zipped bool) map[string][]byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var r io.Reader = f
	if zipped {
		if r, err = gzip.NewReader(f); err != nil {
			t.Fatal(err)
		}
	}
	return readTar(t, r)
}

func readTar(t *testing.T, r io.Reader) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(time.Unix(1750000000, 0)) || h.Uid != 0 {
			t.Errorf("%s: got time %v and owner %d", h.Name, h.ModTime, h.Uid)
		}
		files[h.Name] = body
	}
}

// TestImage follows the OCI layout from its index to the files of each platform, and checks all digests on the way.
func TestImage(t *testing.T) {
	o, p := testOptions(), testParts()
	img := image{name: "example.com/nodelet:1", created: o.when()}
	for _, arch := range []string{"amd64", "s390x"} {
		img.platforms = append(img.platforms, platform{arch: arch, files: imageFiles(p, []byte("program for "+arch))})
	}
	files := untar(t, write(t, "image.tar", img.write), false)
	type object struct {
		Manifests, Layers []descriptor
		Config            descriptor
		Rootfs            struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	read := func(d descriptor) (o object) {
		t.Helper()
		body := files[blobPath(d)]
		if digest(body) != d.Digest || int64(len(body)) != d.Size {
			t.Fatalf("%s: got digest %s and %d bytes, want %s", d.Digest, digest(body), len(body), d.Digest)
		}
		if err := json.Unmarshal(body, &o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	var index object
	if err := json.Unmarshal(files["index.json"], &index); err != nil {
		t.Fatal(err)
	}
	var arches []string
	for _, d := range read(index.Manifests[0]).Manifests {
		arch := d.Platform["architecture"]
		arches = append(arches, arch)
		manifest := read(d)
		packed, err := gzip.NewReader(bytes.NewReader(files[blobPath(manifest.Layers[0])]))
		if err != nil {
			t.Fatal(err)
		}
		layer, err := io.ReadAll(packed)
		if err != nil {
			t.Fatal(err)
		}
		if got := read(manifest.Config).Rootfs.DiffIDs[0]; got != digest(layer) {
			t.Errorf("%s: got diff_id %s, want %s", arch, got, digest(layer))
		}
		if got := string(readTar(t, bytes.NewReader(layer))["usr/bin/nodelet"]); got != "program for "+arch {
			t.Errorf("%s: got program %q, want %q", arch, got, "program for "+arch)
		}
	}
	if !slices.Equal(arches, []string{"amd64", "s390x"}) {
		t.Errorf("got platforms %v", arches)
	}
}

// TestImageIsRead has skopeo read the image as an OCI archive and as what "docker load" reads.
func TestImageIsRead(t *testing.T) {
	o := testOptions()
	img := image{name: "example.com/nodelet:1", created: o.when(), platforms: []platform{{
		arch:  "amd64",
		files: imageFiles(testParts(), []byte("program")),
	}}}
	path := write(t, "image.tar", img.write)
	for _, from := range []string{"oci-archive:" + path, "docker-archive:" + path} {
		out := tool(t, "skopeo", "--insecure-policy", "--override-arch", "amd64", "inspect", "--config", from)
		if !strings.Contains(out, "/usr/bin/nodelet") {
			t.Errorf("%s: got %s, want the entry point", from, out)
		}
	}
}

// TestEqualBytes writes each format twice and compares.
func TestEqualBytes(t *testing.T) {
	o, p := testOptions(), testParts()
	for name, f := range map[string]func(io.Writer) error{
		"deb":   nodeletDeb(o, p, "amd64", []byte("program")).write,
		"rpm":   nodeletRPM(o, p, "amd64", []byte("program")).write,
		"tar":   archive{dir: "d", files: archiveFiles(p, []byte("program")), when: o.when()}.write,
		"image": image{name: "n:1", created: o.when(), platforms: []platform{{arch: "amd64"}}}.write,
	} {
		var first, second bytes.Buffer
		if err := errors.Join(f(&first), f(&second)); err != nil {
			t.Fatal(err)
		}
		if first.Len() == 0 || !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Errorf("%s: got different files (%d and %d bytes), want the same", name, first.Len(), second.Len())
		}
	}
}
