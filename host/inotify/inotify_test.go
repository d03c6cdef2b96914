package inotify

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func newWatcher(t *testing.T, paths ...string) *Watcher {
	t.Helper()
	w, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	for _, p := range paths {
		if err := w.Add(p); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// await reads changes until one of path comes.
func await(w *Watcher, path string) Change {
	for got := range w.Changes() {
		if got.Path == path {
			return got
		}
	}
	panic("unreachable: the channel is never closed")
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestChanges checks that creating, writing, renaming and removing a file is reported with its path.
func TestChanges(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	w := newWatcher(t, dir)
	do(t, os.WriteFile(a, nil, 0o600))
	await(w, a)
	do(t, os.Rename(a, b))
	if got := await(w, a); got.Removed {
		t.Error("a renamed file: got removed")
	}
	await(w, b)
	do(t, w.Add(dir)) // once more changes nothing
	do(t, os.WriteFile(b, []byte("text"), 0o600))
	await(w, b)
	do(t, os.Remove(b))
	do(t, os.WriteFile(b, nil, 0o600))
	for !await(w, b).Removed { // until its removal is reported
	}
}

// TestAgain checks that a directory which was removed or moved away is watched again after it was added again, and that
// changes in the moved one are not reported.
func TestAgain(t *testing.T) {
	parent := t.TempDir()
	dir, away := filepath.Join(parent, "dir"), filepath.Join(parent, "away")
	for name, end := range map[string]func() error{
		"removed": func() error { return os.RemoveAll(dir) },
		"moved":   func() error { return os.Rename(dir, away) },
	} {
		t.Run(name, func(t *testing.T) {
			do(t, os.Mkdir(dir, 0o700))
			w := newWatcher(t, dir)
			do(t, end())
			await(w, dir)
			if _, err := os.Stat(away); err == nil {
				do(t, os.WriteFile(filepath.Join(away, "old"), nil, 0o600))
			}
			do(t, os.Mkdir(dir, 0o700))
			do(t, w.Add(dir))
			file := filepath.Join(dir, "new")
			do(t, os.WriteFile(file, nil, 0o600))
			if got := <-w.Changes(); got.Path != file {
				t.Errorf("got change of %s, want %s", got.Path, file)
			}
			do(t, os.RemoveAll(dir))
			do(t, os.RemoveAll(away))
		})
	}
}

// TestTurnedLink checks that a link that was added again after it was turned reports changes in its new directory only.
func TestTurnedLink(t *testing.T) {
	parent := t.TempDir()
	link := filepath.Join(parent, "link")
	before, after := filepath.Join(parent, "1"), filepath.Join(parent, "2")
	for _, dir := range []string{before, after} {
		do(t, os.Mkdir(dir, 0o700))
		do(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	}
	do(t, os.Symlink(before, link))
	w := newWatcher(t, link)
	do(t, os.Remove(link))
	do(t, os.Symlink(after, link))
	do(t, w.Add(link))
	do(t, os.RemoveAll(before))
	file := filepath.Join(link, "new")
	do(t, os.WriteFile(file, nil, 0o600))
	if got := <-w.Changes(); got.Path != file {
		t.Errorf("got %+v, want a change of %s", got, file)
	}
}

// TestClosed checks that a closed instance neither ends nor begins watches of one that was opened after it, which gets
// the number of its file.
func TestClosed(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "file")
	old, err := Open(func(Event) {})
	do(t, err)
	wd, err := old.Watch(dir)
	do(t, err)
	old.Close()
	events := make(chan Event, 10)
	next, err := Open(func(e Event) { events <- e })
	do(t, err)
	defer next.Close()
	if _, err := next.Watch(filepath.Dir(file)); err != nil {
		t.Fatal(err)
	}
	old.Unwatch(wd)
	if _, err := old.Watch(dir); err == nil {
		t.Error("watch with the closed instance: got no error")
	}
	do(t, os.WriteFile(file, nil, 0o600))
	if got := <-events; got.Name != "file" || got.Ended {
		t.Errorf("first event of the open instance: got %+v, want that of the file", got)
	}
}

// TestMissing checks that adding a path that does not exist returns an error.
func TestMissing(t *testing.T) {
	w := newWatcher(t)
	if err := w.Add("/nowhere/at/all"); !os.IsNotExist(err) {
		t.Errorf("got error %v, want one that the path does not exist", err)
	}
}

// TestLost checks that an overflow of the kernel's queue is reported as lost changes.
func TestLost(t *testing.T) {
	w := newWatcher(t)
	event := make([]byte, 16)
	binary.NativeEndian.PutUint32(event[4:], unix.IN_Q_OVERFLOW)
	if path, known := w.path(decode(event)); path != "" || !known {
		t.Errorf("got path %q, %v, want an empty path, true", path, known)
	}
}

// TestTooManyWatches checks that the error of too many watches does not read like one about a full disk alone.
func TestTooManyWatches(t *testing.T) {
	err := watchError("/etc/cni", unix.ENOSPC)
	if want := "raise the sysctl fs.inotify.max_user_watches"; !strings.Contains(err.Error(), want) {
		t.Errorf("got %q, want %q in it", err, want)
	}
	w := newWatcher(t)
	missing := w.Add("/no/such/file")
	if !errors.Is(missing, fs.ErrNotExist) || strings.Contains(missing.Error(), "sysctl") {
		t.Errorf("got %v for a missing file, want %v without advice", missing, fs.ErrNotExist)
	}
}
