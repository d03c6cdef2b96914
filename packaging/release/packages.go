package main

import (
	"embed"
	"fmt"
	"time"
)

// scripts has the scripts that package managers run: deb/PACKAGE.SCRIPT and rpm/SCRIPT.
//
//go:embed scripts
var scripts embed.FS

func script(name string) []byte {
	text, err := scripts.ReadFile("scripts/" + name)
	if err != nil {
		panic(err) // the file is part of this program
	}
	return text
}

// nodeletDeb is the package "nodelet": the program and its own unit.
func nodeletDeb(o options, p parts, arch string, binary []byte) debPackage {
	files := append(installed(p, binary),
		// Not a configuration file: dpkg may replace one that has the flags of a node, such as with --force-confnew.
		file{path: "/usr/share/nodelet/default", mode: 0o644, body: p.defaults},
		file{path: "/usr/share/zsh/vendor-completions/_nodelet", mode: 0o644, body: p.completion["zsh"]},
		file{path: "/usr/share/doc/nodelet/third-party.txt.gz", mode: 0o644, body: compressed(p.licenses.text())},
		file{path: "/usr/share/lintian/overrides/nodelet", mode: 0o644, body: script("deb/nodelet.lintian")})
	return debPackage{
		name:    "nodelet",
		version: debVersion(o.version),
		arch:    debArch(arch),
		fields: `Depends: mount
Recommends: containerd | cri-o, e2fsprogs, iptables
Suggests: kubeadm, nfs-common, open-iscsi
Section: admin
Priority: optional
Homepage: https://github.com/nodelet/nodelet
Description: lightweight node agent for Kubernetes
 nodelet runs the pods of a node through a CRI runtime and reports back. It
 takes the kubelet's flags and files, and can take the kubelet's place with
 its pods running.
`,
		files: append(files, docFiles(o, p, "nodelet")...),
		scripts: map[string][]byte{
			"postinst": script("deb/nodelet.postinst"),
			"prerm":    script("deb/nodelet.prerm"),
			"postrm":   script("deb/nodelet.postrm"),
		},
		when: o.when(),
	}
}

// kubeletDeb is the package "nodelet-kubelet": the name that kubeadm calls and the unit that it starts. The drop-in
// 10-kubeadm.conf, which says where the files of kubeadm are, comes with kubeadm's own package. Any version of nodelet
// will do: an operator may upgrade one of the two first, and apt would then remove this one to repair a dependency.
func kubeletDeb(o options, p parts, arch string) debPackage {
	files := []file{
		{path: "/usr/bin/kubelet", link: "nodelet"},
		{path: "/usr/lib/systemd/system/kubelet.service", mode: 0o644, body: p.kubeletUnit},
		{path: "/usr/share/bash-completion/completions/kubelet", link: "nodelet"},
		{path: "/usr/share/fish/vendor_completions.d/kubelet.fish", link: "nodelet.fish"},
		{path: "/usr/share/man/man8/kubelet.8.gz", link: "nodelet.8.gz"},
	}
	return debPackage{
		name:    "nodelet-kubelet",
		version: debVersion(o.version),
		arch:    debArch(arch),
		fields: fmt.Sprintf(`Depends: nodelet
Recommends: kubernetes-cni | containernetworking-plugins
Provides: kubelet (= %s)
Conflicts: kubelet
Replaces: kubelet
Enhances: kubeadm
Section: admin
Priority: optional
Homepage: https://github.com/nodelet/nodelet
Description: nodelet as the kubelet of this machine
 The program /usr/bin/kubelet and the unit kubelet.service, both nodelet, for
 kubeadm and other tools that set up a kubelet under its own name.
`, p.kubernetes),
		files: append(files, docFiles(o, p, "nodelet-kubelet")...),
		scripts: map[string][]byte{
			"postinst": script("deb/nodelet-kubelet.postinst"),
			"prerm":    script("deb/nodelet-kubelet.prerm"),
			"postrm":   script("deb/nodelet-kubelet.postrm"),
		},
		when: o.when(),
	}
}

// docFiles are the files that Debian requires of each package: its copyright and its changes.
func docFiles(o options, p parts, name string) []file {
	changes := fmt.Sprintf("%s (%s) unstable; urgency=medium\n\n"+
		"  * See https://github.com/nodelet/nodelet/blob/main/CHANGELOG.md\n\n -- %s  %s\n",
		name, debVersion(o.version), maintainer, o.when().Format(time.RFC1123Z))
	return []file{
		{path: "/usr/share/doc/" + name + "/copyright", mode: 0o644, body: p.copyright},
		{path: "/usr/share/doc/" + name + "/changelog.gz", mode: 0o644, body: compressed([]byte(changes))},
	}
}

// nodeletRPM is the package "nodelet" for distributions with RPM.
func nodeletRPM(o options, p parts, arch string, binary []byte) rpmPackage {
	files := append(installed(p, binary),
		file{path: "/etc/default/nodelet", mode: 0o644, body: p.defaults, conf: true},
		// RPM removes the directories that a package names, and no others.
		file{path: "/etc/nodelet/", mode: 0o755},
		file{path: "/usr/share/doc/nodelet/", mode: 0o755},
		file{path: "/usr/share/licenses/nodelet/", mode: 0o755},
		file{path: "/usr/share/zsh/site-functions/_nodelet", mode: 0o644, body: p.completion["zsh"]},
		file{path: "/usr/share/doc/nodelet/CHANGELOG.md", mode: 0o644, body: p.changelog},
		file{path: "/usr/share/licenses/nodelet/LICENSE", mode: 0o644, body: p.license},
		file{path: "/usr/share/licenses/nodelet/THIRD-PARTY-LICENSES.txt", mode: 0o644, body: p.licenses.text()})
	return rpmPackage{
		version:  debVersion(o.version),
		arch:     rpmArch(arch),
		licenses: p.licenses.expression(),
		files:    files,
		when:     o.when(),
	}
}
