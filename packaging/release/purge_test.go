package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestPurge has dpkg and rpm install the packages into an empty root directory and remove them again, with their
// configuration. The directory of manifests belongs to kubeadm or the user: it stays, also while it is empty. Nothing
// else does. The scripts of the packages are left out: they act on the machine that runs the test.
func TestPurge(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("package managers want root")
	}
	o, p := testOptions(), testParts()
	node, kubelet := nodeletDeb(o, p, "amd64", []byte("program")), kubeletDeb(o, p, "amd64")
	node.scripts, kubelet.scripts = nil, nil
	nodeDeb, kubeletDeb := write(t, "nodelet.deb", node.write), write(t, "nodelet-kubelet.deb", kubelet.write)
	rpm := write(t, "nodelet.rpm", nodeletRPM(o, p, "amd64", []byte("program")).write)
	for _, tt := range []struct {
		name, database         string
		manager, install, gone []string
	}{
		{
			name:     "dpkg",
			database: "var/lib/dpkg",
			manager:  []string{"dpkg", "--force-depends", "--force-architecture", "--log=/dev/null", "--root"},
			install:  []string{"--install", nodeDeb, kubeletDeb},
			gone:     []string{"--purge", "nodelet-kubelet", "nodelet"},
		},
		{
			name:     "rpm",
			database: "var/lib/rpm",
			manager:  []string{"rpm", "--nodeps", "--noscripts", "--dbpath=/var/lib/rpm", "--root"},
			install:  []string{"--install", "--ignorearch", rpm},
			gone:     []string{"--erase", "nodelet"},
		},
	} {
		for _, manifests := range []string{"no directory", "an empty directory", "a manifest"} {
			t.Run(tt.name+" with "+manifests, func(t *testing.T) {
				need(t, tt.manager[0])
				root := newRoot(t, tt.database, manifests)
				before := list(t, root, tt.database)
				manage := func(args []string) {
					tool(t, tt.manager[0], slices.Concat(tt.manager[1:], []string{root}, args)...)
				}
				manage(tt.install)
				if during := list(t, root, tt.database); !slices.Contains(during, "usr/bin/nodelet") {
					t.Fatalf("installed: got files %q, want usr/bin/nodelet among them", during)
				}
				manage(tt.gone)
				after := list(t, root, tt.database)
				if gone, left := without(before, after), without(after, before); len(gone)+len(left) > 0 {
					t.Errorf("after the removal: got %q gone and %q left, want neither", gone, left)
				}
			})
		}
	}
}

// TestUpgradeKeepsFlags has dpkg upgrade a package to one with other flags, and take its version of each configuration
// file. The flags of a node stay: without --kubeconfig nodelet would remove the pods of the cluster. In earlier
// packages the file with the flags was a configuration file.
func TestUpgradeKeepsFlags(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("dpkg wants root")
	}
	need(t, "dpkg")
	o, p := testOptions(), testParts()
	before := nodeletDeb(o, p, "amd64", nil)
	before.files = append(before.files, file{path: "/etc/default/nodelet", mode: 0o644, body: p.defaults, conf: true})
	o.version, p.defaults = "1.2.3", append(p.defaults, "# changed\n"...)
	after := nodeletDeb(o, p, "amd64", nil)
	before.scripts, after.scripts = nil, nil
	root := newRoot(t, "var/lib/dpkg", "no directory")
	flags := filepath.Join(root, "etc/default/nodelet")
	const mine = "NODELET_ARGS=--kubeconfig=/etc/kubernetes/kubelet.conf\n"
	for _, deb := range []debPackage{before, after} {
		tool(t, "dpkg", "--force-depends", "--force-architecture", "--force-confnew", "--log=/dev/null", "--root", root,
			"--install", write(t, "nodelet.deb", deb.write))
		if deb.version == before.version {
			if err := os.WriteFile(flags, []byte(mine), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, err := os.ReadFile(flags); string(got) != mine {
		t.Errorf("got flags %q, %v, want %q", got, err, mine)
	}
}

// newRoot returns a root directory with the directories that each distribution has, and a package database. Directories
// that a distribution always has stay when the last package with a file in them goes.
func newRoot(t *testing.T, database, manifests string) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"etc/default", "usr/bin", "usr/lib/systemd/system", "usr/share/doc", "usr/share/licenses",
		"usr/share/lintian/overrides", "usr/share/man/man5", "usr/share/man/man8",
		"usr/share/bash-completion/completions", "usr/share/fish/vendor_completions.d",
		"usr/share/zsh/vendor-completions", "usr/share/zsh/site-functions",
		"var", database + "/info", database + "/updates"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		// Another package owns it: dpkg removes an empty directory if its last owner goes.
		keep := filepath.Join(root, dir, "of-another-package")
		if err := os.WriteFile(keep, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, database, "status"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "etc/kubernetes/manifests")
	if manifests != "no directory" {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if manifests == "a manifest" {
		if err := os.WriteFile(filepath.Join(dir, "web.yaml"), []byte("kind: Pod\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// list returns all files below root, without those of the package manager.
func list(t *testing.T, root, database string) (names []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if name == database {
			return fs.SkipDir
		}
		names = append(names, name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// without returns the names of a that are not in b.
func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(name string) bool { return slices.Contains(b, name) })
}
