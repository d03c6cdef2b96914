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

// TestMakeReal checks that make real runs its tests in the environment that its testbed gives to a command, and runs
// none when that does not start or lacks something: the tests would skip, or use the cluster of the user's own
// kubeconfig.
func TestMakeReal(t *testing.T) {
	for name, c := range map[string]struct{ testbed, tested string }{
		"does not start": {testbed: "exit 1"},
		"no API server":  {testbed: `env -u KUBECONFIG CONTAINER_RUNTIME_ENDPOINT=unix:///cri.sock "$@"`},
		"no runtime":     {testbed: `env -u CONTAINER_RUNTIME_ENDPOINT KUBECONFIG=/admin.kubeconfig "$@"`},
		"both": {
			testbed: `env KUBECONFIG=/admin.kubeconfig CONTAINER_RUNTIME_ENDPOINT=unix:///cri.sock "$@"`,
			tested:  "/admin.kubeconfig unix:///cri.sock",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := writeFiles(t, map[string]string{
				"bin/testbed": `#!/bin/sh
case $1 in build | up | down) exit ;; run) ;; *) exit 1 ;; esac
while [ $# -gt 0 ] && [ "$1" != -- ]; do shift; done
shift && touch started
` + c.testbed + "\n",
				"bin/go": "#!/bin/sh\n" + `printf '%s %s' "$NODELET_TEST_KUBECONFIG" "$NODELET_TEST_CRI" > tested` + "\n",
			})
			out, err := makeIn(t, dir, "real", "TESTBED=testbed")
			if (err == nil) != (c.tested != "") {
				t.Errorf("make real: got %v, want success=%v:\n%s", err, c.tested != "", out)
			}
			if _, err := os.Stat(filepath.Join(dir, "started")); err != nil {
				t.Errorf("make real: got no testbed for a command, want one:\n%s", out)
			}
			if got, _ := os.ReadFile(filepath.Join(dir, "tested")); string(got) != c.tested {
				t.Errorf("make real: got tests with %q, want %q:\n%s", got, c.tested, out)
			}
		})
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
