package nodelet_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// makeIn runs a target of the Makefile in dir, with the programs of dir/bin before all others, and without the
// variables of a make that runs this test.
func makeIn(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	makefile, err := filepath.Abs("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("make", append([]string{"-C", dir, "-f", makefile}, args...)...)
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// writeFiles writes the files into a new directory and returns it. Those of bin are programs.
func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestMakeRealWithoutTestbed checks that make real runs no test when its testbed does not start or cannot be found: the
// tests would skip, or use the cluster of the user's own kubeconfig.
func TestMakeRealWithoutTestbed(t *testing.T) {
	dir := writeFiles(t, map[string]string{
		"bin/testbed": "#!/bin/sh\ncase $1 in build | up | down) ;; *) exit 1 ;; esac\n",
		"bin/go":      "#!/bin/sh\ntouch tested\n",
	})
	out, err := makeIn(t, dir, "real", "TESTBED=testbed")
	if err == nil {
		t.Errorf("make real: got success, want a failure:\n%s", out)
	}
	if _, err := os.Stat(filepath.Join(dir, "tested")); err == nil {
		t.Errorf("make real: got tests, want none:\n%s", out)
	}
}
