package main

import (
	"io"
	"strings"
	"time"

	"github.com/google/rpmpack"
)

// rpmPackage is the RPM package "nodelet".
type rpmPackage struct {
	version, arch string
	licenses      string // SPDX expression
	files         []file
	when          time.Time
}

// rpmArches maps GOARCH to the name of RPM where the two differ.
var rpmArches = map[string]string{"386": "i686", "amd64": "x86_64", "arm64": "aarch64", "arm": "armv7hl"}

func rpmArch(arch string) string {
	if name, ok := rpmArches[arch]; ok {
		return name
	}
	return arch
}

const description = `nodelet runs the pods of a node through a CRI runtime and reports back. It takes
the kubelet's flags and files, and can take the kubelet's place with its pods
running.`

// modes of files in RPM headers.
const (
	rpmDir  = 0o040000
	rpmLink = 0o120000
)

func (p rpmPackage) write(w io.Writer) error {
	meta := rpmpack.RPMMetaData{
		Name:        "nodelet",
		Version:     p.version,
		Release:     "1",
		Epoch:       rpmpack.NoEpoch,
		Arch:        p.arch,
		Summary:     "Lightweight node agent for Kubernetes",
		Description: description,
		Licence:     p.licenses,
		URL:         "https://github.com/nodelet/nodelet",
		Packager:    maintainer,
		BuildHost:   "reproducible",
		BuildTime:   p.when,
	}
	for _, r := range []struct {
		list *rpmpack.Relations
		name string
	}{
		{&meta.Requires, "util-linux"}, {&meta.Recommends, "containerd"}, {&meta.Recommends, "e2fsprogs"},
		{&meta.Recommends, "iptables"}, {&meta.Suggests, "nfs-utils"}, {&meta.Suggests, "iscsi-initiator-utils"},
	} {
		if err := r.list.Set(r.name); err != nil {
			return err
		}
	}
	r, err := rpmpack.NewRPM(meta)
	if err != nil {
		return err
	}
	for _, f := range p.files {
		r.AddFile(p.entry(f))
	}
	r.AddPostin(string(script("rpm/post")))
	r.AddPreun(string(script("rpm/preun")))
	r.AddPostun(string(script("rpm/postun")))
	return r.Write(w)
}

func (p rpmPackage) entry(f file) rpmpack.RPMFile {
	e := rpmpack.RPMFile{
		Name:  f.path,
		Mode:  uint(f.mode),
		Body:  f.body,
		Owner: "root",
		Group: "root",
		MTime: uint32(p.when.Unix()),
	}
	switch {
	case strings.HasSuffix(f.path, "/"):
		e.Name, e.Mode = strings.TrimSuffix(f.path, "/"), e.Mode|rpmDir
	case f.link != "":
		e.Mode, e.Body = rpmLink|0o777, []byte(f.link)
	case f.conf:
		e.Type = rpmpack.ConfigFile | rpmpack.NoReplaceFile
	case strings.HasPrefix(f.path, "/usr/share/licenses/"):
		e.Type = rpmpack.LicenceFile
	case strings.HasPrefix(f.path, "/usr/share/man/"), strings.HasPrefix(f.path, "/usr/share/doc/"):
		e.Type = rpmpack.DocFile
	}
	return e
}
