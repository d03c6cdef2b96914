package config

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestRelativePaths checks that relative paths of the file of --config are below its directory, but those of drop-in
// files, as those of flags, below the working directory, as with the kubelet.
func TestRelativePaths(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	const main = head + "staticPodPath: a\nresolvConf: b/c\nvolumePluginDir: d\n" +
		"authentication: {x509: {clientCAFile: ca}}\n"
	const dropIn = head + "staticPodPath: etc/manifests\ntlsCertFile: cert\ntlsPrivateKeyFile: key\n"
	for path, text := range map[string]string{"main/config.yaml": main, "below/10-a.conf": dropIn} {
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	c, err := Load([]string{"--config=main/config.yaml", "--config-dir=below", "--volume-plugin-dir=e"})
	if err != nil {
		t.Fatal(err)
	}
	k := c.Kubelet
	got := []string{
		k.StaticPodPath, *k.ResolverConfig, k.VolumePluginDir, k.Authentication.X509.ClientCAFile, k.TLSCertFile,
	}
	if want := []string{"etc/manifests", dir + "/main/b/c", "e", dir + "/main/ca", "cert"}; !cmp.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestOtherWorkingDirectory checks that relative paths, also those of the files, are those of an agent that runs in
// another directory.
func TestOtherWorkingDirectory(t *testing.T) {
	dir := t.TempDir()
	for path, text := range map[string]string{
		"main/config.yaml": head + "staticPodPath: a\nresolvConf: b\ntlsPrivateKeyFile: key\nhealthzPort: 1\n",
		"below/10-a.conf":  head + "staticPodPath: manifests\ntlsCertFile: /cert\n",
	} {
		path = filepath.Join(dir, path)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	args := []string{
		"--config=main/config.yaml", "--config-dir=below", "--kubeconfig=../k", "--cni-bin-dir=bin,/b", "--root-dir=/r",
		"--bootstrap-kubeconfig=",
	}
	c, err := LoadIn(dir, args)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{
		c.Kubelet.StaticPodPath, *c.Kubelet.ResolverConfig, c.Kubelet.TLSCertFile, c.Kubelet.TLSPrivateKeyFile,
		c.Paths.Kubeconfig, c.Paths.Root, c.Paths.BootstrapKubeconfig,
	}
	want := []string{
		dir + "/manifests", dir + "/main/b", "/cert", dir + "/main/key", filepath.Dir(dir) + "/k", "/r", "",
	}
	if got, want = append(got, c.Network.BinDirs...), append(want, dir+"/bin", "/b"); !cmp.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if c, err := LoadHealthz(dir, append(args, "--unknown")); err != nil || c.Healthz().Port() != 1 {
		t.Errorf("health checks: got %v, %v, want port 1", c, err)
	}
}

// dropInDir returns a directory with one drop-in file.
func dropInDir(t *testing.T, body string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "10-a.conf"), []byte(head+body), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestLinkedDropIns checks that --config-dir may be a symbolic link, and that a file is refused.
func TestLinkedDropIns(t *testing.T) {
	dir := dropInDir(t, "maxPods: 7\n")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if got := mustLoad(t, "", "--config-dir", link).Kubelet.MaxPods; got != 7 {
		t.Errorf("got maxPods %d, want 7", got)
	}
	if _, err := load(t, "", "--config-dir", filepath.Join(dir, "10-a.conf")); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("with a file: got %v, want %v", err, unix.ENOTDIR)
	}
}

// TestEmptyEnforcement checks that an empty list enforces nothing, in each file: without one it is the default.
func TestEmptyEnforcement(t *testing.T) {
	const none = "enforceNodeAllocatable: []\n"
	for _, c := range []struct{ main, dropIn string }{{"", ""}, {none, ""}, {"", none}, {none, none}} {
		want := []string{}
		if c.main+c.dropIn == "" {
			want = []string{"pods"}
		}
		got := mustLoad(t, c.main, "--config-dir", dropInDir(t, c.dropIn)).Kubelet.EnforceNodeAllocatable
		if !cmp.Equal(got, want) {
			t.Errorf("%q with %q: got %q, want %q", c.main, c.dropIn, got, want)
		}
	}
}
