package inotify

import (
	"os"
	"path/filepath"
	"testing"
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

// await reads on until a path comes.
func await(w *Watcher, path string) {
	for got := range w.Changes() {
		if got == path {
			return
		}
	}
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestChanges: what is made, written, renamed and removed is told of by its path.
func TestChanges(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	w := newWatcher(t, dir)
	do(t, os.WriteFile(a, nil, 0o600))
	await(w, a)
	do(t, os.Rename(a, b))
	await(w, a)
	await(w, b)
	do(t, w.Add(dir)) // once more changes nothing
	do(t, os.WriteFile(b, []byte("text"), 0o600))
	await(w, b)
	do(t, os.Remove(b))
	await(w, b)
}

// TestAgain: a directory that was removed, or moved away, is watched again after it was added again, and what happens in the one
// that was moved is nobody's change.
func TestAgain(t *testing.T) {
	parent := t.TempDir()
	dir, away := filepath.Join(parent, "dir"), filepath.Join(parent, "away")
	for name, end := range map[string]func() error{"removed": func() error { return os.RemoveAll(dir) }, "moved": func() error { return os.Rename(dir, away) }} {
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
			if got := <-w.Changes(); got != file {
				t.Errorf("told of %s, want %s", got, file)
			}
			do(t, os.RemoveAll(dir))
			do(t, os.RemoveAll(away))
		})
	}
}

// TestMissing: a path that is not there is an error that names it.
func TestMissing(t *testing.T) {
	w := newWatcher(t)
	if err := w.Add("/nowhere/at/all"); !os.IsNotExist(err) {
		t.Errorf("error %v", err)
	}
}

// TestLost: changes that nobody took until the kernel had no room are told of as such.
func TestLost(t *testing.T) {
	w := newWatcher(t)
	event := make([]byte, 16)
	event[5] = 0x40 // IN_Q_OVERFLOW
	if path, known := w.path(decode(event)); path != "" || !known {
		t.Errorf("path %q, %v", path, known)
	}
}
