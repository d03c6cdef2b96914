package client

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLoadConfigErrors checks that the error says whether a kubeconfig cannot be read, is none, or has no cluster.
func TestLoadConfigErrors(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ content, want string }{
		"unreadable":   {"", "read kubeconfig " + dir + "/unreadable: read " + dir + "/unreadable: is a directory"},
		"empty":        {"", "it has no cluster; want a file of kubeadm or kubectl config"},
		"without":      {"apiVersion: v1\nkind: Config\n", "it has no cluster"},
		"no-yaml":      {"{{{", "it is not a kubeconfig"},
		"another-kind": {"apiVersion: v1\nkind: Pod\n", "it is not a kubeconfig"},
		"no-ca": {"apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a}}]\n" +
			"clusters: [{name: a, cluster: {server: 'https://x', certificate-authority: ca.crt}}]\n",
			"open " + dir + "/ca.crt: no such file or directory"},
	} {
		file := filepath.Join(dir, name)
		prepare := func() error { return os.WriteFile(file, []byte(c.content), 0o600) }
		if name == "unreadable" {
			prepare = func() error { return os.Mkdir(file, 0o700) }
		}
		if err := prepare(); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadConfig(file); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q", name, err, c.want)
		}
	}
}
