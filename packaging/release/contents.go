package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// file is a file of a package or archive. Root owns it. A file with a link is a symbolic link.
type file struct {
	path string // absolute in packages, relative in archives
	mode int64  // permission bits
	body []byte
	link string
	// conf marks a configuration file: an upgrade keeps what the user changed.
	conf bool
}

// parts are the contents that all architectures share, except the licences.
type parts struct {
	unit, kubeletUnit  []byte            // systemd units
	completion         map[string][]byte // by shell
	config, defaults   []byte
	man5, man8         []byte
	license, copyright []byte
	readme, changelog  []byte
	tools              []file
	kubernetes         string // version of Kubernetes without "v", such as 1.37.2
	licenses           licenses
}

// readParts reads the source tree and asks a program that runs on this machine for its units and completions.
func readParts(ctx context.Context, o options, program string) (parts, error) {
	program, err := filepath.Abs(program)
	if err != nil {
		return parts{}, err
	}
	p := parts{completion: map[string][]byte{}}
	ask := func(into *[]byte, args ...string) {
		var text string
		if err == nil {
			text, err = output(ctx, o.root, nil, program, args...)
			*into = []byte(text + "\n")
		}
	}
	ask(&p.unit, "systemd", "unit", "/usr/bin/nodelet")
	ask(&p.kubeletUnit, "systemd", "unit", "--kubelet", "/usr/bin/kubelet")
	for _, shell := range []string{"bash", "zsh", "fish"} {
		var text []byte
		ask(&text, "completion", shell)
		p.completion[shell] = text
	}
	var version []byte
	ask(&version, "--version") // Kubernetes v1.37.2+nodelet-0.1.0
	_, kubernetes, _ := strings.Cut(string(version), " v")
	p.kubernetes, _, _ = strings.Cut(strings.TrimSpace(kubernetes), "+")
	for name, into := range map[string]*[]byte{
		"packaging/config.yaml": &p.config, "packaging/default": &p.defaults, "packaging/copyright": &p.copyright,
		"docs/man/nodelet-config.5": &p.man5, "docs/man/nodelet.8": &p.man8,
		"LICENSE": &p.license, "README.md": &p.readme, "CHANGELOG.md": &p.changelog,
	} {
		if err == nil {
			*into, err = os.ReadFile(filepath.Join(o.root, name))
		}
	}
	if err == nil {
		p.tools, err = readTools(o.root)
	}
	return p, err
}

// readTools reads the files of the source tree that help to run many nodes. Only the archive has them.
func readTools(root string) (all []file, err error) {
	tree := os.DirFS(filepath.Join(root, "packaging"))
	for _, dir := range []string{"rollout", "prometheus"} {
		err = errors.Join(err, fs.WalkDir(tree, dir, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".test.yaml") {
				return err
			}
			f := file{path: name, mode: 0o644}
			if info, err := d.Info(); err == nil && info.Mode()&0o100 != 0 {
				f.mode = 0o755
			}
			f.body, err = fs.ReadFile(tree, name)
			all = append(all, f)
			return err
		}))
	}
	return all, err
}

// installed returns the files that both kinds of packages install. /etc/kubernetes is not among them: it belongs to
// kubeadm or the user, and package managers remove an empty directory with the last package that names it.
func installed(p parts, binary []byte) []file {
	return []file{
		{path: "/usr/bin/nodelet", mode: 0o755, body: binary},
		{path: "/etc/nodelet/config.yaml", mode: 0o644, body: p.config, conf: true},
		{path: "/usr/lib/systemd/system/nodelet.service", mode: 0o644, body: p.unit},
		{path: "/usr/share/bash-completion/completions/nodelet", mode: 0o644, body: p.completion["bash"]},
		{path: "/usr/share/fish/vendor_completions.d/nodelet.fish", mode: 0o644, body: p.completion["fish"]},
		{path: "/usr/share/man/man5/nodelet-config.5.gz", mode: 0o644, body: compressed(p.man5)},
		{path: "/usr/share/man/man8/nodelet.8.gz", mode: 0o644, body: compressed(p.man8)},
	}
}

// archiveFiles returns the files of the .tar.gz, below its one directory.
func archiveFiles(p parts, binary []byte) []file {
	return append([]file{
		{path: "nodelet", mode: 0o755, body: binary},
		{path: "README.md", mode: 0o644, body: p.readme},
		{path: "CHANGELOG.md", mode: 0o644, body: p.changelog},
		{path: "LICENSE", mode: 0o644, body: p.license},
		{path: "THIRD-PARTY-LICENSES.txt", mode: 0o644, body: p.licenses.text()},
		{path: "config.yaml", mode: 0o644, body: p.config},
		{path: "nodelet.service", mode: 0o644, body: p.unit},
		{path: "default", mode: 0o644, body: p.defaults},
		{path: "man/nodelet-config.5", mode: 0o644, body: p.man5},
		{path: "man/nodelet.8", mode: 0o644, body: p.man8},
		{path: "completion/nodelet.bash", mode: 0o644, body: p.completion["bash"]},
		{path: "completion/_nodelet", mode: 0o644, body: p.completion["zsh"]},
		{path: "completion/nodelet.fish", mode: 0o644, body: p.completion["fish"]},
	}, p.tools...)
}

// imageFiles returns the files of the container image.
func imageFiles(p parts, binary []byte) []file {
	return []file{
		{path: "usr/bin/nodelet", mode: 0o755, body: binary},
		{path: "usr/share/doc/nodelet/LICENSE", mode: 0o644, body: p.license},
		{path: "usr/share/doc/nodelet/THIRD-PARTY-LICENSES.txt", mode: 0o644, body: p.licenses.text()},
	}
}

// compressed returns text as gzip without a name and a time.
func compressed(text []byte) []byte {
	var buf bytes.Buffer
	w, err := gzip.NewWriterLevel(&buf, gzip.BestCompression)
	if err != nil {
		panic(fmt.Sprintf("gzip: %v", err)) // only an unknown level fails
	}
	w.Write(text) // a bytes.Buffer takes everything
	w.Close()
	return buf.Bytes()
}
