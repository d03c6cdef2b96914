package cgroups

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

// overwrite writes a file of a cgroup, as another program could.
func (t *Tree) overwrite(test *testing.T, n names.Name, file, text string) {
	test.Helper()
	if err := os.WriteFile(filepath.Join(t.dirs(n)[""], file), []byte(text), 0o600); err != nil {
		test.Fatal(err)
	}
}

// checkFile checks a file of a cgroup; empty: it was not written.
func (t *Tree) checkFile(test *testing.T, n names.Name, file, want string) {
	test.Helper()
	text, err := os.ReadFile(filepath.Join(t.dirs(n)[""], file))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		test.Fatal(err)
	}
	if got := strings.TrimSpace(string(text)); got != want {
		test.Errorf("%s of %s: got %q, want %q", file, n.Spell(false), got, want)
	}
}

// TestProtect checks the memory that kubepods and the burstable class protect, and that it is written again only if the
// kernel has another value.
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
		{Protection{Guaranteed: 1 << 20, Burstable: 1 << 13}, "8192", "1056768"},
		{Protection{Burstable: 1 << 13}, "8192", "8192"},
		{Protection{Burstable: 1<<13 + 1}, "8192", "8192"}, // the kernel would have rounded it
		{Protection{}, "0", "0"},
	} {
		if err := tree.Protect(c.p); err != nil {
			t.Fatal(err)
		}
		check(c.low, c.both)
	}
	for _, n := range []names.Name{tree.pods, burstable} {
		tree.overwrite(t, n, "memory.low", "4096")
		if err := tree.Protect(Protection{}); err != nil {
			t.Fatal(err)
		}
		check("0", "0")
	}
	if err := os.RemoveAll(tree.unified); err != nil {
		t.Fatal(err)
	}
	if err := tree.Protect(Protection{Burstable: 1}); err == nil {
		t.Error("the cgroup is gone: got no error, want one")
	}
}

// TestSharesOfClasses checks that the classes get their CPU shares back if another program changes them, and that
// nothing is written otherwise.
func TestSharesOfClasses(t *testing.T) {
	tree := newFakeTree(t, false)
	burstable, bestEffort := tree.pods.Class("Burstable"), tree.pods.Class("BestEffort")
	for range 2 {
		tree.overwrite(t, burstable, "cpu.weight", "100")
		tree.overwrite(t, bestEffort, "cpu.weight", "100")
		if err := tree.SetShares(1500); err != nil {
			t.Fatal(err)
		}
		tree.checkFile(t, burstable, "cpu.weight", shares(tree, 1536))
		tree.checkFile(t, bestEffort, "cpu.weight", "1")
	}
	file := filepath.Join(tree.dirs(burstable)[""], "cpu.weight")
	long := time.Unix(1000, 0)
	if err := os.Chtimes(file, long, long); err != nil {
		t.Fatal(err)
	}
	if err := tree.SetShares(1500); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || !info.ModTime().Equal(long) {
		t.Errorf("the same shares again: got a write at %v, %v, want none", info.ModTime(), err)
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
				tree.overwrite(t, n, file, "4096")
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
