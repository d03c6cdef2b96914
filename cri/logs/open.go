package logs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/beneath"
)

// Dir is a directory below which logs are opened.
type Dir struct {
	path  string
	watch watcher
	// moving is held while files are renamed, and for reading while a reader looks for the next file.
	moving sync.RWMutex
}

// New returns the logs below path, normally /var/log/pods. The directory may be missing until a log is read.
func New(path string) *Dir { return &Dir{path: filepath.Clean(path)} }

// Open opens the regular file or directory name, a path relative to d. It follows no symbolic link. Anything else does
// not exist for it.
func (d *Dir) Open(name string) (*os.File, error) {
	f, err := d.open(filepath.Join(d.path, name), unix.O_RDONLY|unix.O_DIRECTORY)
	if !errors.Is(err, unix.ENOTDIR) {
		return f, err
	}
	root, err := d.root()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err = beneath.OpenRegular(root, filepath.Clean(name), beneath.NoLinks)
	if errors.Is(err, beneath.ErrNotRegular) {
		err = fmt.Errorf("%w: %w", os.ErrNotExist, err)
	}
	return f, explained(err)
}

// errOutside is the error for a path that is not below the directory.
var errOutside = errors.New("is not below the directory of logs")

// below returns path relative to the directory.
func (d *Dir) below(path string) (string, error) {
	rel, err := filepath.Rel(d.path, path)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return "", fmt.Errorf("%s %w %s", path, errOutside, d.path)
	}
	return rel, nil
}

// open opens a path, which must lie below the directory, and follows no link on the way from there.
func (d *Dir) open(path string, flags int) (*os.File, error) {
	rel, err := d.below(path)
	if err != nil {
		return nil, err
	}
	root, err := d.root()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return openAt(root, rel, flags)
}

// root opens the directory itself.
func (d *Dir) root() (*os.File, error) {
	return os.OpenFile(d.path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_PATH, 0)
}

// openAt opens a path below an open directory.
func openAt(dir *os.File, rel string, flags int) (*os.File, error) {
	if flags&unix.O_PATH == 0 {
		flags |= unix.O_NONBLOCK // opening a named pipe must not block
	}
	f, err := beneath.Open(dir, rel, flags, beneath.NoLinks)
	return f, explained(err)
}

// statAt returns what fstat(2) says of a path below an open directory.
func statAt(dir *os.File, rel string) (unix.Stat_t, error) {
	info, err := beneath.Stat(dir, rel, beneath.NoLinks)
	return info, explained(err)
}

// explained adds the cause to the error for a symbolic link.
func explained(err error) error {
	if errors.Is(err, unix.ELOOP) {
		return fmt.Errorf("%w (symbolic links are not followed)", err)
	}
	return err
}

// regular opens a log for reading. It opens nothing but a regular file.
func regular(dir *os.File, name string) (*os.File, os.FileInfo, error) {
	f, err := beneath.OpenRegular(dir, name, beneath.NoLinks)
	if err != nil {
		return nil, nil, explained(err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}
