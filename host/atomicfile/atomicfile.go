// Package atomicfile replaces files in one step: whoever reads a file, at any time and after any crash of the agent, sees the content of
// before or the new one, whole.
//
// It owns no file. The rooms that keep something on the disk call it, with one writer to a path at a time. A crash may leave a hidden
// file, .NAME.new, which the next writer to NAME replaces.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces a file. After a power cut it may have the content of before, the new one, or none: it is for what is worth nothing then,
// or can be made anew.
func Write(path string, content []byte, mode fs.FileMode) error {
	return write(path, content, mode, func(*os.File) error { return nil })
}

// WriteSynced replaces a file, surely on the disk: once it has returned, the new content outlives a power cut. A power cut before leaves
// one of the two, whole.
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

// Remove removes a file, if it is there, and what a crash has left of a write to it.
func Remove(path string) error {
	for _, p := range []string{nextTo(path), path} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// nextTo is where the new content is written.
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
