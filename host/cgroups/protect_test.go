package cgroups

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/cgroups"

	"github.com/nodelet/nodelet/host/cgroups/names"
)

// newFakeTree returns a tree whose cgroups are directories with the files of cgroup v2. No kernel acts on them.
func newFakeTree(t *testing.T, protect bool) *Tree {
	t.Helper()
	cgroups.TestMode = true
	t.Cleanup(func() { cgroups.TestMode = false })
	tree := newTree(Config{Driver: DriverCgroupfs, Protect: protect}, true)
	tree.unified = t.TempDir()
	for _, n := range []names.Name{tree.pods, tree.pods.Class("Burstable"), tree.pods.Class("BestEffort")} {
		dir := tree.dirs(n)[""]
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte("cpu memory pids\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return tree
}

// checkFile checks a file of a cgroup; empty: it was not written.
func (t *Tree) checkFile(test *testing.T, n names.Name, file, want string) {
	test.Helper()
	text, err := os.ReadFile(filepath.Join(t.dirs(n)[""], file))
	if err != nil && !os.IsNotExist(err) {
		test.Fatal(err)
	}
	if got := strings.TrimSpace(string(text)); got != want {
		test.Errorf("%s of %s: got %q, want %q", file, n.Spell(false), got, want)
	}
}

// TestProtect checks the memory that kubepods and the burstable class protect, and that nothing is written twice.
func TestProtect(t *testing.T) {
	tree := newFakeTree(t, true)
	burstable := tree.pods.Class("Burstable")
	check := func(low, both string) {
		t.Helper()
		tree.checkFile(t, tree.pods, "memory.min", both)
		tree.checkFile(t, tree.pods, "memory.low", low)
		tree.checkFile(t, burstable, "memory.min", "")
		tree.checkFile(t, burstable, "memory.low", low)
		tree.checkFile(t, tree.pods.Class("BestEffort"), "memory.low", "")
	}
	check("", "")
	for _, c := range []struct {
		p         Protection
		low, both string
	}{
		{Protection{Guaranteed: 1 << 20, Burstable: 1 << 10}, "1024", "1049600"},
		{Protection{Burstable: 1 << 10}, "1024", "1024"},
		{Protection{}, "0", "0"},
	} {
		if err := tree.Protect(c.p); err != nil {
			t.Fatal(err)
		}
		check(c.low, c.both)
	}
	if err := os.RemoveAll(tree.unified); err != nil {
		t.Fatal(err)
	}
	if err := tree.Protect(Protection{}); err != nil {
		t.Errorf("the same values again: got %v, want no write", err)
	}
	if err := tree.Protect(Protection{Burstable: 1}); err == nil {
		t.Error("the cgroup is gone: got no error, want one")
	}
}

// TestUnprotect checks that the memory that an earlier agent has protected is no longer, if that is turned off, and
// that a restart changes nothing if it is on.
func TestUnprotect(t *testing.T) {
	for _, protect := range []bool{false, true} {
		tree := newFakeTree(t, protect)
		burstable := tree.pods.Class("Burstable")
		want := "0"
		for _, n := range []names.Name{tree.pods, burstable} {
			for _, file := range []string{"memory.min", "memory.low"} {
				if err := os.WriteFile(filepath.Join(tree.dirs(n)[""], file), []byte("4096"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		if protect {
			want = "4096"
		}
		ofPods, ofBurstable := tree.unprotected() // what Ensure sets
		err := errors.Join(
			tree.set(tree.pods, Resources{Unified: ofPods}),
			tree.set(burstable, Resources{Unified: ofBurstable}),
		)
		if err != nil {
			t.Fatal(err)
		}
		tree.checkFile(t, tree.pods, "memory.min", want)
		tree.checkFile(t, tree.pods, "memory.low", want)
		tree.checkFile(t, burstable, "memory.low", want)
		if err := tree.Protect(Protection{Burstable: 1}); err != nil {
			t.Fatal(err)
		}
		if !protect {
			tree.checkFile(t, burstable, "memory.low", "0")
		}
	}
}
