package boundedfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/boundedfile"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(
		os.WriteFile(at("empty"), nil, 0o600),
		os.WriteFile(at("full"), []byte("12345"), 0o600),
		os.WriteFile(at("large"), []byte("123456"), 0o600),
		os.Symlink("full", at("link")),
		os.Mkdir(at("dir"), 0o700),
		unix.Mkfifo(at("pipe"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"empty": "", "full": "12345", "link": "12345"} {
		if got, err := boundedfile.Read(at(name), 5); string(got) != want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
	}
	for name, want := range map[string]error{
		"large":   boundedfile.ErrTooLarge,
		"missing": fs.ErrNotExist,
		"dir":     nil,
		"pipe":    nil,
	} {
		got, err := boundedfile.Read(at(name), 5)
		if got != nil || err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: got %q, %v, want error %v", name, got, err, want)
		}
	}
}
