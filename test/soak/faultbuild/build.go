// Package faultbuild builds a nodelet whose clock can be wrong and whose system calls can fail, so that a test can
// inject what it cannot do to a machine that others use as well: a clock that jumps, a file system that is read-only or
// returns EIO, and a kernel without inotify watches.
//
// The product's code is not changed, and has no hooks: the Go standard library is, by "go build -overlay". The
// functions through which system calls go, and time.Now, look at a page of memory that the test shares with the agent;
// see Page. Timers and measured durations use the monotonic clock and stay right, as they do when an administrator sets
// the clock. System calls of programs that the agent runs do not fail.
//
// It owns the built program and the page's file. The soak test calls it. A crash leaves both files.
package faultbuild

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed syscall.txt
var syscallFile []byte

//go:embed time.txt
var timeFile []byte

// edit replaces one occurrence of old in a file of the standard library.
type edit struct{ file, old, new string }

var edits = []edit{
	{"time/time.go", "sec, nsec, mono := runtimeNow()\n",
		"sec, nsec, mono := runtimeNow()\n\tsec, nsec = soakShift(sec, nsec)\n"},
	{"syscall/syscall_linux.go", "func RawSyscall(trap, a1, a2, a3 uintptr) (r1, r2 uintptr, err Errno) {\n",
		"func RawSyscall(trap, a1, a2, a3 uintptr) (r1, r2 uintptr, err Errno) {\n" +
			"\tif trap == SYS_INOTIFY_INIT1 && soak.inotify != 0 {\n\t\treturn ^uintptr(0), 0, EMFILE\n\t}\n"},
	{"syscall/syscall_linux.go", "func Syscall(trap, a1, a2, a3 uintptr) (r1, r2 uintptr, err Errno) {\n",
		"func Syscall(trap, a1, a2, a3 uintptr) (r1, r2 uintptr, err Errno) {\n" + fail},
	{"syscall/syscall_linux.go", "func Syscall6(trap, a1, a2, a3, a4, a5, a6 uintptr) (r1, r2 uintptr, err Errno) {\n",
		"func Syscall6(trap, a1, a2, a3, a4, a5, a6 uintptr) (r1, r2 uintptr, err Errno) {\n" + fail},
}

const fail = "\tif e := soakErrno(trap, a1, a2, a3); e != 0 {\n\t\treturn ^uintptr(0), 0, e\n\t}\n"

// Build builds the program out from the package pkg of the working directory's module. It works for amd64 only. Files
// that the build needs are left beside out.
func Build(ctx context.Context, pkg, out string) error {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("find the Go standard library: %w", err)
	}
	overlay, err := writeOverlay(filepath.Join(strings.TrimSpace(string(root)), "src"), overlayDir(out))
	if err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "build", "-overlay", overlay, "-tags", "grpcnotrace", "-trimpath",
		"-o", out, pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s with faults: %w\n%s", pkg, err, text)
	}
	return nil
}

// overlayDir returns the directory of the changed files for the program out. It is hidden: the go command would take it
// for a package of the module that out is in.
func overlayDir(out string) string {
	return filepath.Join(filepath.Dir(out), "."+filepath.Base(out)+".overlay")
}

// writeOverlay writes the changed files of the standard library at src, and the list of them that go build reads. It
// returns the path of the list.
func writeOverlay(src, dir string) (string, error) {
	files := map[string][]byte{
		"syscall/zsoak_linux_amd64.go": syscallFile,
		"time/zsoak.go":                timeFile,
	}
	for _, e := range edits {
		text, ok := files[e.file]
		if !ok {
			var err error
			if text, err = os.ReadFile(filepath.Join(src, e.file)); err != nil {
				return "", err
			}
		}
		if n := strings.Count(string(text), e.old); n != 1 {
			return "", fmt.Errorf("change %s of the Go standard library: found %d times, want once: %q", e.file, n, e.old)
		}
		files[e.file] = []byte(strings.Replace(string(text), e.old, e.new, 1))
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	replace := map[string]string{}
	for name, text := range files {
		file := filepath.Join(dir, strings.ReplaceAll(name, "/", "-"))
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return "", err
		}
		replace[filepath.Join(src, name)] = file
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, list, 0o644)
}
