// Package boundedfile reads files of bounded size that others have written.
//
// It owns no file and never writes. Packages call it for files that users, other programs or containers can put
// anything in: a huge file must not fill the memory of the agent, and a named pipe must not block it. A crash leaves
// nothing behind.
package boundedfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ErrTooLarge is the cause of an error about a file that is larger than its limit.
var ErrTooLarge = errors.New("file is too large")

// Read returns the content of the regular file at path, symbolic links followed. A file of more than limit bytes is an
// error that wraps ErrTooLarge, one that does not exist an error that wraps fs.ErrNotExist.
func Read(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadAll(f, limit)
}

// ReadAll returns what Read returns, of an open file. Open it with O_NONBLOCK: opening a named pipe blocks otherwise.
func ReadAll(f *os.File, limit int64) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: f.Name(), Err: errors.New("not a regular file")}
	}
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(content)) > limit {
		return nil, &fs.PathError{Op: "read", Path: f.Name(), Err: fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)}
	}
	return content, nil
}
