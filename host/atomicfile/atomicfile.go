// Package atomicfile replaces files in one step: readers see either the old content or the new, at any time and after
// any crash of the agent.
//
// It owns no file. Packages that keep state on disk call it, with one writer to a path at a time. A crash may leave a
// hidden file, .NAME.new, which the next write to NAME replaces.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Durability is what a replaced file survives in addition to a crash of the agent.
type Durability int

const (
	// NotDurable: after a power failure the file may have the old content, the new one, or none.
	NotDurable Durability = iota
	// Whole: after a power failure it has the old content or the new one.
	Whole
	// Durable: the new content survives a power failure once the call has returned.
	Durable
)

// Write replaces the file at a path. It is NotDurable: use WriteSynced for data that must survive.
func Write(path string, content []byte, mode fs.FileMode) error {
	return write(path, content, mode, NotDurable)
}

// WriteSynced replaces the file at a path. It is Durable.
func WriteSynced(path string, content []byte, mode fs.FileMode) error {
	return write(path, content, mode, Durable)
}

// WriteLinked is WriteSynced for a file of the administrator: a symbolic link to a file, or to where there is none yet,
// stays, and what it leads to is replaced. No pod may be able to write to a directory on the way.
func WriteLinked(path string, content []byte, mode fs.FileMode) error {
	target, err := follow(path)
	if err != nil {
		return fmt.Errorf("replace %s: %w", path, err)
	}
	return WriteSynced(target, content, mode)
}

// maxLinks is how many links the kernel follows as well.
const maxLinks = 40

// follow returns where the links at path lead to. A link to anything but a file, such as /dev/null, is not followed.
func follow(path string) (string, error) {
	if at, err := os.Stat(path); err == nil && !at.Mode().IsRegular() {
		return path, nil
	}
	for range maxLinks {
		link, err := os.Readlink(path)
		if err != nil { // not a link, or nothing there
			return path, nil
		}
		if !filepath.IsAbs(link) {
			link = filepath.Dir(path) + "/" + link
		}
		dir, name := filepath.Split(link)
		if dir, err = filepath.EvalSymlinks(dir); err != nil {
			return "", err
		}
		path = filepath.Join(dir, name)
	}
	return "", unix.ELOOP
}

func write(path string, content []byte, mode fs.FileMode, d Durability) error {
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	if err = errors.Join(WriteBelow(dir, filepath.Base(path), content, mode, d), dir.Close()); err != nil {
		return fmt.Errorf("replace %s: %w", path, err)
	}
	return nil
}

// WriteBelow replaces the file at a path below root, which no symbolic link leads out of.
func WriteBelow(root *os.Root, path string, content []byte, mode fs.FileMode, d Durability) error {
	fresh := Leftover(path)
	f, err := root.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	err = f.Chmod(mode) // before there is anything to read: one that a crash has left, and the umask, may say otherwise
	if err == nil {
		_, err = f.Write(content)
	}
	if err == nil && d >= Whole {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = root.Rename(fresh, path)
	}
	if err != nil {
		_ = root.Remove(fresh)
		return err
	}
	if d < Durable {
		return nil
	}
	dir, err := root.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Remove removes a file, if it exists, and what a crash has left of a write to it.
func Remove(path string) error {
	for _, p := range []string{Leftover(path), path} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

const suffix = ".new"

// Leftover is the path at which the new content is written: a crash may leave that file.
func Leftover(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+suffix)
}

// IsLeftover reports whether a crash may have left a file of this name.
func IsLeftover(name string) bool { return strings.HasSuffix(name, suffix) }
