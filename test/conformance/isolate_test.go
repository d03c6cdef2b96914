package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/ownmounts"
	"github.com/nodelet/nodelet/test/testbed"
	"github.com/nodelet/nodelet/test/waittest"
)

// innerName is the environment variable with the name of the testbed for a test binary that isolate has started.
const innerName = "NODE_SUITE_TEST_NAME"

// owners is where a testbed's owner leaves its record.
const owners = "/run/lock/nodelet-testbed"

// playInner is the program that isolate has started.
func playInner(name string) {
	if err := inner(name); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// inner checks that the name has an owner, and that a run in namespaces of its own starts the testbed without it.
func inner(name string) error {
	record, err := os.ReadFile(filepath.Join(owners, name))
	if err != nil || string(record) != os.Getenv(testbed.StateEnv) {
		return fmt.Errorf("the owner's record: got %q, %w", record, err)
	}
	o := options{node: true, testbed: testbed.Options{Name: name, Agent: "no such kind"}}
	if _, _, err := up(context.Background(), o, nil); err == nil || !strings.Contains(err.Error(), "no such kind") {
		return fmt.Errorf("start the testbed: got %w, want that it has no such agent", err)
	}
	return nil
}

// abandon leaves what a killed run has left: a process in the cgroup of its testbed, and its owner's record.
func abandon(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	group := "/nodelet-tb-" + name
	dirs, err := testbed.MakeCgroup(group)
	ownmounts.Need(t, "cgroups", err)
	left := exec.Command("sleep", "infinity")
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = left.Process.Kill()
		_ = left.Wait()
		if err := testbed.RemoveCgroup(group, waittest.Limit); err != nil {
			t.Error(err)
		}
	})
	for _, dir := range dirs {
		pid := []byte(strconv.Itoa(left.Process.Pid))
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), pid, 0); err != nil {
			t.Fatal(err)
		}
	}
	record := filepath.Join(owners, name)
	err = errors.Join(os.MkdirAll(owners, 0o755), os.WriteFile(record, []byte(t.TempDir()), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(record) })
	return left
}

// TestIsolateClearsAbandoned checks that what a killed run has left is taken down before a run in namespaces of its
// own, which sees none of its processes.
func TestIsolateClearsAbandoned(t *testing.T) {
	testbed.NeedPrograms(t, map[string]string{"unshare": "util-linux"})
	left := abandon(t, fmt.Sprintf("t%d-left", os.Getpid()))
	name := fmt.Sprintf("t%d", os.Getpid())
	t.Setenv(innerName, name)
	t.Setenv(testbed.StateEnv, t.TempDir())
	t.Cleanup(func() { os.Remove(filepath.Join(owners, name)) })
	if err := isolate(waittest.Context(t), options{node: true, testbed: testbed.Options{Name: name}}); err != nil {
		t.Fatal(err)
	}
	pid := left.Process.Pid
	if ended, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); ended != pid || err != nil {
		t.Errorf("the process of the abandoned testbed: got %d, %v, want that it has ended", ended, err)
	}
}
