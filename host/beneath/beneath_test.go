package beneath

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOpen(t *testing.T) {
	base := t.TempDir()
	for path, text := range map[string]string{"secret": "out", "top/file": "in", "top/sub/file": "in"} {
		path = filepath.Join(base, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"inside": "sub/file", "dir": "sub", "outside": "../secret", "absolute": "/", "magic": "/proc/self/root",
		"root": "/sub/file",
	} {
		if err := os.Symlink(target, filepath.Join(base, "top", link)); err != nil {
			t.Fatal(err)
		}
	}
	top, err := os.Open(filepath.Join(base, "top"))
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	for _, c := range []struct {
		path    string
		resolve Resolve
		want    error
	}{
		{"file", NoLinks, nil},
		{"sub/../file", NoLinks, nil},
		{"../secret", NoLinks, unix.EXDEV},
		{"../secret", LinksInside, unix.EXDEV},
		{filepath.Join(base, "secret"), LinksInside, unix.EXDEV},
		{"inside", NoLinks, unix.ELOOP},
		{"inside", SameMount, unix.ELOOP},
		{"dir/file", NoLinks, unix.ELOOP},
		{"inside", LinksInside, nil},
		{"dir/file", LinksInside, nil},
		{"outside", LinksInside, unix.EXDEV},
		{"absolute", LinksInside, unix.EXDEV},
		{"magic", LinksInside, unix.EXDEV},
		{"root", LinksInside, unix.EXDEV},
		{"root", LinksInRoot, nil},
		{"inside", LinksInRoot, nil},
		{"../file", LinksInRoot, nil},
		{"outside", LinksInRoot, unix.ENOENT},
		{"magic", LinksInRoot, unix.ENOENT},
		{"missing", NoLinks, unix.ENOENT},
	} {
		f, err := Open(top, c.path, unix.O_RDONLY, c.resolve)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got error %v, want %v", c.path, err, c.want)
		}
		if info, err := Stat(top, c.path, c.resolve); !errors.Is(err, c.want) || err == nil && info.Size != 2 {
			t.Errorf("stat %s: got size %d and error %v, want size 2 or error %v", c.path, info.Size, err, c.want)
		}
		if err != nil {
			continue
		}
		if got, err := io.ReadAll(f); string(got) != "in" {
			t.Errorf("%s: got %q, %v, want %q", c.path, got, err, "in")
		}
		f.Close()
	}
}

func TestCreate(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	f, err := Create(dir, "new", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600, NoLinks)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Mode() != 0o600 || f.Name() != filepath.Join(dir.Name(), "new") {
		t.Errorf("got %s with mode %v, %v, want new with mode 0600", f.Name(), info.Mode(), err)
	}
}

// TestOpenRegular checks that nothing but a regular file is opened. The kernel has no driver for the device: an open of
// it fails with ENXIO.
func TestOpenRegular(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o400),
		os.Symlink("file", filepath.Join(dir, "link")),
		os.Mkdir(filepath.Join(dir, "dir"), 0o700),
		unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	special := []string{"dir", "pipe"}
	if os.Geteuid() == 0 {
		if err := unix.Mknod(filepath.Join(dir, "device"), unix.S_IFCHR|0o600, int(unix.Mkdev(240, 0))); err != nil {
			t.Fatal(err)
		}
		special = append(special, "device")
	}
	at, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	for path, resolve := range map[string]Resolve{"file": NoLinks, "link": LinksInside} {
		f, err := OpenRegular(at, path, resolve)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if text, err := io.ReadAll(f); string(text) != "text" || err != nil || f.Name() != filepath.Join(dir, path) {
			t.Errorf("%s: got %q, %v, name %s", path, text, err, f.Name())
		}
		f.Close()
	}
	for _, path := range special {
		if _, err := OpenRegular(at, path, NoLinks); !errors.Is(err, ErrNotRegular) {
			t.Errorf("%s: got %v, want %v", path, err, ErrNotRegular)
		}
	}
	if _, err := OpenRegular(at, "link", NoLinks); !errors.Is(err, unix.ELOOP) {
		t.Errorf("link: got %v, want %v", err, unix.ELOOP)
	}
	if _, err := OpenRegular(at, "missing", NoLinks); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing: got %v, want %v", err, os.ErrNotExist)
	}
}

// TestMove checks that an entry is moved to a name that is free, and replaces nothing, in each file system.
func TestMove(t *testing.T) {
	noFlags := func(from int, name string, to int, newName string, flags uint) error {
		if flags != 0 {
			return unix.EINVAL
		}
		return unix.Renameat2(from, name, to, newName, 0)
	}
	for kind, rename := range map[string]func(int, string, int, string, uint) error{
		"with flags": unix.Renameat2, "without flags": noFlags,
	} {
		root := t.TempDir()
		for _, name := range []string{"log", "other"} {
			if err := os.WriteFile(filepath.Join(root, name), []byte(name), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("nowhere", filepath.Join(root, "link")); err != nil {
			t.Fatal(err)
		}
		dir, err := os.Open(root)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		for _, c := range []struct {
			name, to string
			want     error
		}{
			{"log", "other", unix.EEXIST}, {"log", "link", unix.EEXIST}, {"log", "old", nil}, {"log", "older", unix.ENOENT},
		} {
			if err := move(dir, c.name, dir, c.to, rename); !errors.Is(err, c.want) {
				t.Errorf("%s: %s to %s: got %v, want %v", kind, c.name, c.to, err, c.want)
			}
		}
		for name, want := range map[string]string{"old": "log", "other": "other"} {
			if text, err := os.ReadFile(filepath.Join(root, name)); err != nil || string(text) != want {
				t.Errorf("%s: %s: got %q, %v, want %q", kind, name, text, err, want)
			}
		}
	}
}
