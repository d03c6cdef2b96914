package atomicfile_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/atomicfile"
	"github.com/nodelet/nodelet/test/pagecache"
)

type writer func(path string, content []byte, mode fs.FileMode) error

func whole(path string, content []byte, mode fs.FileMode) error {
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer root.Close()
	return atomicfile.WriteBelow(root, filepath.Base(path), content, mode, atomicfile.Whole)
}

func each(t *testing.T, test func(t *testing.T, write writer, path string)) {
	for name, write := range map[string]writer{
		"Write":       atomicfile.Write,
		"WriteSynced": atomicfile.WriteSynced,
		"WriteBelow":  whole,
	} {
		t.Run(name, func(t *testing.T) { test(t, write, filepath.Join(t.TempDir(), "file")) })
	}
}

// alone checks the file and that no other file is in its directory.
func alone(t *testing.T, path, content string, mode fs.FileMode) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("the directory: got %v, %v, want one", entries, err)
	}
	got, err := os.ReadFile(path)
	fi, statErr := os.Stat(path)
	if err != nil || statErr != nil || string(got) != content || fi.Mode() != mode {
		t.Fatalf("got file %q, %v; %v, %v, want the new content and mode", got, fi, err, statErr)
	}
}

// TestReplaces checks that the file has the new content and mode, and that a symbolic link is replaced, not its target.
func TestReplaces(t *testing.T) {
	each(t, func(t *testing.T, write writer, path string) {
		for _, c := range []struct {
			content string
			mode    fs.FileMode
		}{{"first", 0o666}, {"", 0o600}, {"third", 0o644}} {
			if err := write(path, []byte(c.content), c.mode); err != nil {
				t.Fatal(err)
			}
			alone(t, path, c.content, c.mode)
		}
		other := filepath.Join(t.TempDir(), "other")
		if err := errors.Join(os.Remove(path), os.WriteFile(other, []byte("other"), 0o600), os.Symlink(other, path),
			write(path, []byte("new"), 0o600)); err != nil {
			t.Fatal(err)
		}
		alone(t, path, "new", 0o600)
		alone(t, other, "other", 0o600)
	})
}

// TestWriteLinked checks that links of an administrator stay, and that the file at their end is replaced, also if there
// is none yet.
func TestWriteLinked(t *testing.T) {
	dir := t.TempDir()
	for _, sub := range []string{"etc", "var", "var/deep", "target"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to, name string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link("var/deep", "alias")
	link(filepath.Join(dir, "target", "file"), "var/second") // absolute
	path := link("../alias/../second", "etc/file")           // relative: the parent of what alias leads to
	for _, content := range []string{"first", "second"} {
		if err := atomicfile.WriteLinked(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		alone(t, filepath.Join(dir, "target", "file"), content, 0o600)
		alone(t, path, content, 0o600)
	}
	for _, name := range []string{"etc/file", "var/second"} {
		if _, err := os.Readlink(filepath.Join(dir, name)); err != nil {
			t.Errorf("the link is gone: %v", err)
		}
	}
	loop := link("loop", "loop")
	nowhere := link("nowhere/file", "dangling")
	if err := atomicfile.WriteLinked(loop, nil, 0o600); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link to itself: got %v, want that there are too many links", err)
	}
	if err := atomicfile.WriteLinked(nowhere, nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link into no directory: got %v, want that there is none", err)
	}
	masked := link(os.DevNull, "masked")
	if err := atomicfile.WriteLinked(masked, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if at, err := os.Lstat(masked); err != nil || !at.Mode().IsRegular() {
		t.Errorf("a link to a device: got %v, %v, want it replaced by the file", at, err)
	}
}

// TestContentIsOnDisk checks that content which must survive a power failure is on the disk when the call returns. It
// cannot see whether the content was there before it got its name, nor whether the name is on the disk.
func TestContentIsOnDisk(t *testing.T) {
	pagecache.Need(t)
	for name, write := range map[string]writer{"Whole": whole, "Durable": atomicfile.WriteSynced} {
		path := filepath.Join(t.TempDir(), "file")
		if err := write(path, []byte("new"), 0o600); err != nil {
			t.Fatal(err)
		}
		if n := pagecache.Unwritten(t, path); n != 0 {
			t.Errorf("%s: got %d pages that are in memory alone, want none", name, n)
		}
	}
}

// TestAfterACrash checks that the file which a crash leaves in the middle of a write does not disturb the next write:
// the new file has neither its content nor its mode.
func TestAfterACrash(t *testing.T) {
	each(t, func(t *testing.T, write writer, path string) {
		left := filepath.Join(filepath.Dir(path), ".file.new")
		if err := errors.Join(os.WriteFile(left, []byte("half of something long"), 0o666), os.Chmod(left, 0o666),
			write(path, []byte("new"), 0o600)); err != nil {
			t.Fatal(err)
		}
		alone(t, path, "new", 0o600)
	})
}

// TestFails checks that a failed write leaves the old content and no other file.
func TestFails(t *testing.T) {
	each(t, func(t *testing.T, write writer, path string) {
		if err := os.MkdirAll(filepath.Join(path, "below"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := write(path, []byte("new"), 0o600); err == nil {
			t.Error("replace a directory: got no error, want one")
		}
		if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
			t.Errorf("the directory: got %v, %v, want one", entries, err)
		}
		if err := write(filepath.Join(path, "nowhere", "file"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("without a directory: got %v, want that there is none", err)
		}
	})
}

// TestRemove checks that Remove also removes the file which a crash has left, and succeeds if there is no file.
func TestRemove(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := errors.Join(atomicfile.Write(path, []byte("content"), 0o600),
		os.WriteFile(filepath.Join(filepath.Dir(path), ".file.new"), []byte("half"), 0o600),
		atomicfile.Remove(path), atomicfile.Remove(path)); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) > 0 {
		t.Errorf("directory: got %v, %v, want it empty", entries, err)
	}
}

// TestReaders checks that a reader sees either the old content or the new while the file is replaced.
func TestReaders(t *testing.T) {
	each(t, func(t *testing.T, write writer, path string) {
		contents := [][]byte{bytes.Repeat([]byte("a"), 1<<16), bytes.Repeat([]byte("b"), 1<<10)}
		if err := write(path, contents[0], 0o600); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		var reading sync.WaitGroup
		reading.Go(func() {
			for {
				got, err := os.ReadFile(path)
				if err != nil || !bytes.Equal(got, contents[0]) && !bytes.Equal(got, contents[1]) {
					t.Errorf("got %d bytes, %v, want one of the two contents", len(got), err)
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
		for i := range 50 {
			if err := write(path, contents[i%2], 0o600); err != nil {
				t.Error(err)
			}
		}
		close(done)
		reading.Wait()
	})
}
