// Package ownmounts runs the tests of a package in a mount namespace of their own, and gives them file systems and
// devices. It owns nothing that outlives the tests.
package ownmounts

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"testing"
)

// Privileged is the environment variable that turns the skips of Main and Need into failures, for machines that must
// run every test.
const Privileged = "NODELET_TEST_PRIVILEGED"

// inside is set for the tests in the namespace.
const inside = "NODELET_TEST_OWN_MOUNTS"

// Main runs the tests of a package and ends the process, as its TestMain. As root they get a mount namespace of their
// own: no mount of theirs is left when they end, however they end. Root of a container that may not mount skips them,
// unless Privileged is set.
func Main(m *testing.M) {
	if os.Geteuid() != 0 || os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	runtime.LockOSThread() // Pdeathsig is about the thread
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = os.Args // with the program's own name, by which tests run it
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin = os.Stdin
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if slices.Contains(os.Args, "-test.fuzzworker") {
		for fd := uintptr(3); fd <= 5; fd++ { // a worker talks to its coordinator through these
			cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(fd, "inherited"))
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &exit):
		os.Exit(max(exit.ExitCode(), 1))
	case errors.Is(err, syscall.EPERM) && os.Getenv(Privileged) == "":
		fmt.Println("skipped, for root needs a mount namespace of its own here:", err)
		os.Exit(0)
	default:
		fmt.Fprintln(os.Stderr, "cannot unshare the mount namespace:", err)
		os.Exit(1)
	}
}

// Need skips a test that this machine does not let run: it has no such file system, device or namespace, or root may
// not use it. If Privileged is set, the test fails.
func Need(t testing.TB, what string, err error) {
	t.Helper()
	switch {
	case err == nil:
	case os.Getenv(Privileged) == "":
		t.Skipf("needs %s: %v", what, err)
	default:
		t.Fatalf("needs %s, and %s is set: %v", what, Privileged, err)
	}
}
