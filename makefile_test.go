package nodelet_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// TestMakeVet checks that make vet finds what it is for in a directory that is no clone, and in tests as root.
func TestMakeVet(t *testing.T) {
	for name, file := range map[string]string{
		"gofmt": "package p\nvar  x = 1\n",
		"vet":   "//go:build e2e\n\npackage p\n\nimport \"fmt\"\n\nvar _ = fmt.Sprintf(\"%d\", \"s\")\n",
	} {
		t.Run(name, func(t *testing.T) {
			dir := writeFiles(t, map[string]string{
				"go.mod":        "module p\n\ngo 1.26\n",
				"p.go":          "package p\n",
				"sub/p_test.go": file,
				"bin/git":       "#!/bin/sh\nexit 128\n",
			})
			out, err := makeIn(t, dir, "vet")
			if err == nil || !strings.Contains(out, filepath.Join("sub", "p_test.go")) {
				t.Errorf("make vet: got %v, want a failure that names the file:\n%s", err, out)
			}
		})
	}
}
