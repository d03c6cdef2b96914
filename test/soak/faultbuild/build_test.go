package faultbuild

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// probe says what a program of Build sees: the clock, and the errors of writing and reading a file.
const probe = `package main

import (
	"fmt"
	"os"
	"time"
)

func main() {
	fmt.Println(time.Now().Unix())
	fmt.Println(os.WriteFile(os.Args[1], []byte("x"), 0o600))
	_, err := os.ReadFile(os.Args[1])
	fmt.Println(err)
}
`

// TestFaultsTakeEffect builds a small program with faults and lets it meet each of them.
func TestFaultsTakeEffect(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the standard library")
	}
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	source, program := filepath.Join(dir, "probe.go"), filepath.Join(dir, "probe")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(source, []byte(probe), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Build(t.Context(), source, program); err != nil {
		t.Fatal(err)
	}
	page, err := NewPage(filepath.Join(dir, "page"), root)
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	t.Setenv(Env, filepath.Join(dir, "page"))
	run := func() (clock time.Duration, write, read string) {
		t.Helper()
		out, err := exec.Command(program, filepath.Join(root, "file")).Output()
		lines := strings.Split(string(out), "\n")
		if err != nil || len(lines) < 3 {
			t.Fatalf("run the program: got %q, %v", out, err)
		}
		sec, err := strconv.ParseInt(lines[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return time.Until(time.Unix(sec, 0)), lines[1], lines[2]
	}
	check := func(what string, wantClock time.Duration, wantWrite, wantRead string) {
		t.Helper()
		clock, write, read := run()
		if (clock - wantClock).Abs() > time.Hour {
			t.Errorf("%s: got a clock that is wrong by %s, want %s", what, clock, wantClock)
		}
		if !strings.HasSuffix(write, wantWrite) || !strings.HasSuffix(read, wantRead) {
			t.Errorf("%s: got %s for writing and %s for reading, want %s and %s", what, write, read, wantWrite, wantRead)
		}
	}
	check("no fault", 0, "<nil>", "<nil>")
	page.SetClock(-24 * time.Hour)
	check("clock", -24*time.Hour, "<nil>", "<nil>")
	page.SetClock(0)
	page.FailFiles(unix.EROFS, 1000, true)
	check("read-only", 0, "read-only file system", "<nil>")
	page.FailFiles(unix.EIO, 1000, false)
	check("EIO", 0, "input/output error", "input/output error")
	if page.Failed() < 3 {
		t.Errorf("failed system calls: got %d, want at least 3", page.Failed())
	}
	page.FailFiles(0, 0, false)
	check("healed", 0, "<nil>", "<nil>")
}

// TestOverlayIsNoPackage checks that the go command does not take the changed files for packages of the module.
func TestOverlayIsNoPackage(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.com/m\n", "main.go": "package main\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "bin", "program")
	if _, err := writeOverlay(filepath.Join(strings.TrimSpace(string(root)), "src"), overlayDir(out)); err != nil {
		t.Fatal(err)
	}
	list := exec.Command("go", "list", "./...")
	list.Dir = dir
	if got, err := list.CombinedOutput(); err != nil || string(got) != "example.com/m\n" {
		t.Errorf("packages of the module: got %q, %v, want example.com/m", got, err)
	}
}
