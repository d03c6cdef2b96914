package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// aptGet runs apt-get as on a machine with these packages, and no others.
func aptGet(t *testing.T, installed []debPackage, args ...string) string {
	t.Helper()
	var database strings.Builder
	for _, p := range installed {
		database.WriteString(tool(t, "dpkg-deb", "--field", write(t, p.name+".deb", p.write)))
		database.WriteString("Status: install ok installed\n\n")
	}
	dir := t.TempDir()
	status := filepath.Join(dir, "status")
	if err := os.WriteFile(status, []byte(database.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return tool(t, "apt-get", append([]string{"-o", "Dir=" + dir, "-o", "Dir::State::status=" + status,
		"-o", "APT::Architecture=amd64"}, args...)...)
}

// other returns a package that is not of nodelet.
func other(name, fields string) debPackage {
	return debPackage{
		name:    name,
		version: "1.37.2-1.1",
		arch:    "amd64",
		fields:  fields + "Description: x\n",
		when:    testOptions().when(),
	}
}

// TestUpgradeOfOnePackage has apt check a machine where only one of the two packages was upgraded. To repair a
// dependency, apt would remove nodelet-kubelet, which stops the agent.
func TestUpgradeOfOnePackage(t *testing.T) {
	before, p := testOptions(), testParts()
	after := before
	after.version = "1.3.0"
	for name, o := range map[string][2]options{"nodelet": {after, before}, "nodelet-kubelet": {before, after}} {
		t.Run(name, func(t *testing.T) {
			aptGet(t, []debPackage{other("mount", ""), nodeletDeb(o[0], p, "amd64", nil), kubeletDeb(o[1], p, "amd64")}, "check")
		})
	}
}

// TestBackToKubelet has apt put the package kubelet in the place of nodelet-kubelet. kubeadm, which wants a kubelet,
// stays.
func TestBackToKubelet(t *testing.T) {
	o, p := testOptions(), testParts()
	kubelet := other("kubelet", "")
	out := aptGet(t, []debPackage{other("mount", ""), other("kubeadm", "Depends: kubelet (>= 1.19.0)\n"),
		nodeletDeb(o, p, "amd64", nil), kubeletDeb(o, p, "amd64")},
		"--simulate", "install", write(t, "kubelet.deb", kubelet.write))
	if strings.Count(out, "Remv ") != 1 || !strings.Contains(out, "Remv nodelet-kubelet ") ||
		!strings.Contains(out, "Inst kubelet ") {
		t.Errorf("got %s\nwant that kubelet replaces nodelet-kubelet, and nothing else", out)
	}
}

// TestPluginsStay has apt remove what no package needs. The CNI plugins, which come with the package kubelet, stay when
// nodelet-kubelet has taken its place.
func TestPluginsStay(t *testing.T) {
	o, p := testOptions(), testParts()
	automatic := filepath.Join(t.TempDir(), "automatic")
	mark := "Package: kubernetes-cni\nArchitecture: amd64\nAuto-Installed: 1\n"
	if err := os.WriteFile(automatic, []byte(mark), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		agent debPackage
		stay  bool
	}{
		{other("kubelet", "Depends: kubernetes-cni (>= 1.2.0)\n"), true},
		{kubeletDeb(o, p, "amd64"), true},
		{other("kubectl", ""), false},
	} {
		installed := []debPackage{other("mount", ""), nodeletDeb(o, p, "amd64", nil), other("kubernetes-cni", ""), c.agent}
		out := aptGet(t, installed, "-o", "Dir::State::extended_states="+automatic, "--simulate", "autoremove")
		if got := !strings.Contains(out, "Remv kubernetes-cni "); got != c.stay {
			t.Errorf("with %s: got that the plugins stay: %t, want %t", c.agent.name, got, c.stay)
		}
	}
}
