package main

import (
	"bytes"
	"crypto/md5"
	"fmt"
	"io"
	"strings"
	"time"
)

// debPackage is a binary package of Debian, deb(5).
type debPackage struct {
	name, version, arch string
	fields              string // the lines of the control file after Maintainer, deb-control(5)
	files               []file
	scripts             map[string][]byte // maintainer scripts by name
	when                time.Time
}

// debArches maps GOARCH to the name of Debian where the two differ.
var debArches = map[string]string{"386": "i386", "arm": "armhf", "ppc64le": "ppc64el"}

func debArch(arch string) string {
	if name, ok := debArches[arch]; ok {
		return name
	}
	return arch
}

// debVersion returns a version that Debian and RPM sort before the release: 1.0.0-rc.1 becomes 1.0.0~rc.1.
func debVersion(version string) string { return strings.ReplaceAll(version, "-", "~") }

// fileVersion returns a version for the names of packages: GitHub replaces "~" by "." in names, and SHA256SUMS names
// the files as they are offered there.
func fileVersion(version string) string { return strings.ReplaceAll(debVersion(version), "~", ".") }

// maintainer of the packages.
const maintainer = "The nodelet authors <nodelet@example.org>"

// write writes the package: an ar archive of the format's version, the control files and the contents.
func (p debPackage) write(w io.Writer) error {
	var control, data bytes.Buffer
	if err := writeTarGz(&data, p.files, "./", p.when); err != nil {
		return err
	}
	if err := writeTarGz(&control, p.controlFiles(), "./", p.when); err != nil {
		return err
	}
	var out bytes.Buffer
	out.WriteString("!<arch>\n")
	for _, member := range []struct {
		name string
		body []byte
	}{
		{"debian-binary", []byte("2.0\n")},
		{"control.tar.gz", control.Bytes()},
		{"data.tar.gz", data.Bytes()},
	} {
		fmt.Fprintf(&out, "%-16s%-12d%-6d%-6d%-8o%-10d`\n", member.name, p.when.Unix(), 0, 0, 0o100644, len(member.body))
		out.Write(member.body)
		if len(member.body)%2 == 1 {
			out.WriteByte('\n') // members begin at even offsets
		}
	}
	_, err := out.WriteTo(w)
	return err
}

func (p debPackage) controlFiles() []file {
	var size int
	var sums, confs strings.Builder
	for _, f := range withParents(p.files) {
		size += (len(f.body) + 1023) / 1024
		if f.conf {
			fmt.Fprintln(&confs, f.path)
		}
		if f.link == "" && !strings.HasSuffix(f.path, "/") {
			fmt.Fprintf(&sums, "%x  %s\n", md5.Sum(f.body), strings.TrimPrefix(f.path, "/"))
		}
	}
	control := fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: %s\nInstalled-Size: %d\n%s",
		p.name, p.version, p.arch, maintainer, size, p.fields)
	files := []file{
		{path: "control", mode: 0o644, body: []byte(control)},
		{path: "md5sums", mode: 0o644, body: []byte(sums.String())},
	}
	if confs.Len() > 0 {
		files = append(files, file{path: "conffiles", mode: 0o644, body: []byte(confs.String())})
	}
	for name, text := range p.scripts {
		files = append(files, file{path: name, mode: 0o755, body: text})
	}
	return files
}
