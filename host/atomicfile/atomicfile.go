// Package atomicfile replaces files in one step: readers see either the old content or the new, at any time and after
// any crash of the agent.
//
// It owns no file. Packages that keep state on disk call it, with one writer to a path at a time. A crash may leave a
// hidden file, .NAME.new, which the next write to NAME replaces.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Write is atomic but not durable: after a power failure the file may have the old content, the new one, or none. Use
// WriteSynced for data that must survive.
func Write(path string, content []byte, mode fs.FileMode) error {
	return write(path, content, mode, func(*os.File) error { return nil })
}

// WriteSynced is atomic and durable: when it returns, the new content survives a power failure. A power failure before
// leaves the old content or the new.
func WriteSynced(path string, content []byte, mode fs.FileMode) error {
	if err := write(path, content, mode, (*os.File).Sync); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Remove removes a file, if it exists, and what a crash has left of a write to it.
func Remove(path string) error {
	for _, p := range []string{nextTo(path), path} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// nextTo returns the path at which the new content is written.
func nextTo(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
}

func write(path string, content []byte, mode fs.FileMode, settle func(*os.File) error) error {
	next := nextTo(path)
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	err = f.Chmod(mode) // before there is anything to read: one that a crash has left, and the umask, may say otherwise
	if err == nil {
		_, err = f.Write(content)
	}
	if err == nil {
		err = settle(f)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		_ = os.Remove(next)
	}
	return err
}
