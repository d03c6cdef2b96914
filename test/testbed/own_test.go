package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/waittest"
)

// leave leaves a state directory and a network namespace under a name that no process owns any more. The name belongs
// to this process: the test may run in several at a time.
func leave(t *testing.T, name string) names {
	t.Helper()
	name = fmt.Sprintf("t%d-%s", os.Getpid(), name)
	n := names{name: name, root: t.TempDir()}
	if err := os.MkdirAll(ownersDir, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := openOwner(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(f.Name()) })
	if err := os.WriteFile(f.Name(), []byte(n.root), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(n.dir(), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("ip", "netns", "add", n.netns()).CombinedOutput(); err != nil {
		t.Fatalf("add a network namespace: %v\n%s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "delete", n.netns()).Run() })
	return n
}

// TestOwnRemovesWhatIsAbandoned checks that what killed tests have left is removed, under the own name and others, and
// that what a living process owns stays.
func TestOwnRemovesWhatIsAbandoned(t *testing.T) {
	NeedPrograms(t, map[string]string{"ip": "iproute2"})
	same, other := leave(t, "same"), leave(t, "other")
	started := leave(t, "started") // by hand, after a killed test
	if err := disown(started.name); err != nil {
		t.Fatal(err)
	}
	lived := leave(t, "lived")
	f, err := openOwner(lived.name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	t.Setenv(StateEnv, t.TempDir())
	release, err := Own(t.Context(), same.name, testWriter{t})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		n    names
		gone bool
	}{{same, true}, {other, true}, {lived, false}, {started, false}} {
		_, err := os.Stat(c.n.dir())
		spaces, err2 := c.n.allNetns()
		if gone := os.IsNotExist(err) && len(spaces) == 0; gone != c.gone || err2 != nil {
			t.Errorf("%s: got gone=%v (%v, namespaces %v, %v), want %v", c.n.name, gone, err, spaces, err2, c.gone)
		}
	}
	n := names{name: same.name, root: os.Getenv(StateEnv)}
	if got, err := os.ReadFile(filepath.Join(ownersDir, n.name)); err != nil || string(got) != n.root {
		t.Errorf("the owner's file: got %q and %v, want %q", got, err, n.root)
	}
	waits := make(waiting, 1)
	again := make(chan func(), 1)
	go func() {
		release, err := Own(context.Background(), same.name, waits)
		if err != nil {
			t.Error(err)
		}
		again <- release
	}()
	if got := <-waits; !strings.Contains(got, "another process uses testbed "+same.name) {
		t.Errorf("a second owner: got %q, want that it waits", got)
	}
	if err := disown(same.name); err != nil { // which has an owner
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(ownersDir, n.name)); err != nil || string(got) != n.root {
		t.Errorf("the owner's file after a start: got %q and %v, want %q", got, err, n.root)
	}
	release()
	(<-again)()
	if got, err := os.ReadFile(filepath.Join(ownersDir, n.name)); err != nil || len(got) > 0 {
		t.Errorf("the file without an owner: got %q and %v, want nothing", got, err)
	}
}

// TestFailedClearIsRetried checks that what could not be removed stays on record for the next owner of any name.
func TestFailedClearIsRetried(t *testing.T) {
	NeedPrograms(t, map[string]string{"ip": "iproute2"})
	n := leave(t, "stuck")
	unmount := readOnly(t, n.root)
	record := func() string {
		clearAbandoned(t.Context(), testWriter{t})
		return recordOf(t, n)
	}
	if got := record(); got != n.root {
		t.Errorf("the record of a directory that cannot be removed: got %q, want %q", got, n.root)
	}
	if err := unmount(); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the directory is removed, and its record", func() bool { return record() == "" })
	if _, err := os.Stat(n.dir()); !os.IsNotExist(err) {
		t.Errorf("the directory: got %v, want that it is removed", err)
	}
}

// readOnly makes a directory read-only, until unmount is called.
func readOnly(t *testing.T, dir string) (unmount func() error) {
	t.Helper()
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	unmount = sync.OnceValue(func() error { return unix.Unmount(dir, 0) })
	t.Cleanup(func() { _ = unmount() })
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	return unmount
}

// recordOf returns what the file of the name says about it.
func recordOf(t *testing.T, n names) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(ownersDir, n.name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestFailedClearStaysOnRecord checks that what could not be removed stays on record although its name has another
// owner, in the same directory or in another one, and that what the owner itself leaves does not.
func TestFailedClearStaysOnRecord(t *testing.T) {
	NeedPrograms(t, map[string]string{"ip": "iproute2"})
	n := leave(t, "owned")
	unmount := readOnly(t, n.root)
	other := names{name: n.name, root: t.TempDir()}
	own := func(in names) (release func()) {
		t.Helper()
		t.Setenv(StateEnv, in.root)
		release, err := Own(t.Context(), in.name, testWriter{t})
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	own(n)()
	if got := recordOf(t, n); got != n.root {
		t.Errorf("the record after a run in the same directory: got %q, want %q", got, n.root)
	}
	release := own(other)
	if got, want := recordOf(t, n), n.root+"\n"+other.root; got != want {
		t.Errorf("the record during a run in another directory: got %q, want %q", got, want)
	}
	release()
	if got := recordOf(t, n); got != n.root {
		t.Errorf("the record after a run in another directory: got %q, want %q", got, n.root)
	}
	if err := unmount(); err != nil {
		t.Fatal(err)
	}
	release = own(other)
	if err := os.Mkdir(other.dir(), 0o755); err != nil {
		t.Fatal(err)
	}
	release()
	if got := recordOf(t, n); got != "" {
		t.Errorf("the record after a run that has left its own testbed: got %q, want none", got)
	}
}

// TestOwnEndsWithContext checks that a process that waits for another owner stops when its context ends, as with
// Ctrl-C.
func TestOwnEndsWithContext(t *testing.T) {
	NeedPrograms(t, nil)
	name := fmt.Sprintf("t%d-twice", os.Getpid())
	release, err := Own(t.Context(), name, testWriter{t})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(filepath.Join(ownersDir, name)) })
	defer release()
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(waiting, 1)
	go func() { <-waits; cancel() }()
	if _, err := Own(ctx, name, waits); !errors.Is(err, context.Canceled) {
		t.Errorf("a second owner that is interrupted: got %v, want %v", err, context.Canceled)
	}
}

// waiting receives the first line that is written.
type waiting chan string

func (w waiting) Write(b []byte) (int, error) {
	select {
	case w <- string(b):
	default:
	}
	return len(b), nil
}
