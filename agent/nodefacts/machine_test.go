package nodefacts

import (
	"os"
	"path/filepath"
	"testing"
)

// TestSELinuxFileLabel checks that the label comes from the package for containers, else from the configured policy.
// nowhere else.
func TestSELinuxFileLabel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	look := func(want string) {
		t.Helper()
		got, err := selinuxFileLabel(filepath.Join(dir, "contexts"), filepath.Join(dir, "etc"))
		if got != want || (err == nil) != (want != "") {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	look("")
	write("outside/contexts/lxc_contexts", "file = \"u:r:outside_t:s0\"\n")
	write("etc/mine/contexts/lxc_contexts", "file = \"u:r:mine_t:s0\"\n")
	write("etc/config", "# SELINUXTYPE=other\nSELINUX=enforcing\nSELINUXTYPE=../outside\n")
	look("")
	write("etc/config", "SELINUXTYPE=mine\n")
	look("u:r:mine_t:s0")
	write("contexts", "file = \"u:r:package_t:s0\"\n")
	look("u:r:package_t:s0")
}
