package podfs

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/beneath"
)

const (
	readBatch = 512 // names read from a directory at a time
	// liftDepth bounds the descriptors held while a tree is removed: deeper directories are first moved to its top.
	liftDepth = 64
	// maxStill bounds the attempts to remove a directory that is not empty although there is nothing in it: another
	// process keeps exchanging it.
	maxStill = 64
)

// removeTree removes the entry name of dir and everything below it. It is no error if there is no such entry. It
// follows no link and enters no mount: it removes everything else, and the error names the mount.
func removeTree(ctx context.Context, dir *os.File, name string) error {
	r := remover{}
	_, err := r.remove(ctx, dir, name, 0)
	return err
}

type remover struct {
	top    *os.File // the open directory that is being removed
	lifted int
}

// remove removes one entry. done counts what was removed or moved out of it, to detect progress.
func (r *remover) remove(ctx context.Context, dir *os.File, name string, depth int) (done int, err error) {
	for still := 0; ; {
		err := unlink(dir, name)
		if err == nil {
			return done + 1, nil
		}
		if !errors.Is(err, unix.ENOTEMPTY) {
			return done, err
		}
		if err := ctx.Err(); err != nil {
			return done, err
		}
		if depth == liftDepth {
			err := r.lift(dir, name)
			return done + 1, err
		}
		n, emptyErr := r.empty(ctx, dir, name, depth)
		done += n
		if emptyErr != nil {
			return done, emptyErr
		}
		if n > 0 {
			still = 0
		} else if still++; still == maxStill {
			return done, err
		}
	}
}

// empty removes as much of the content of a directory as it can, and returns the first error.
func (r *remover) empty(ctx context.Context, dir *os.File, name string, depth int) (done int, first error) {
	sub, err := beneath.Open(dir, name, unix.O_RDONLY|unix.O_DIRECTORY, beneath.SameMount)
	switch {
	case errors.Is(err, unix.EXDEV):
		return 0, mountError(dir, name)
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOENT):
		return 1, nil // exchanged for something else meanwhile: look again
	case err != nil:
		return 0, err
	}
	defer sub.Close()
	if depth == 0 {
		r.top = sub
	}
	for {
		if err := ctx.Err(); err != nil {
			return done, err
		}
		names, err := sub.Readdirnames(readBatch)
		for _, name := range names {
			n, err := r.remove(ctx, sub, name, depth+1)
			done += n
			if err != nil && first == nil {
				first = err
			}
		}
		if errors.Is(err, io.EOF) {
			return done, first
		}
		if err != nil {
			return done, err
		}
	}
}

// lift moves a directory to the top of the tree that is being removed, where it is removed later.
func (r *remover) lift(dir *os.File, name string) error {
	for {
		r.lifted++
		err := beneath.Move(dir, name, r.top, "..lifted-"+strconv.Itoa(r.lifted))
		switch {
		case errors.Is(err, unix.EEXIST):
		case errors.Is(err, unix.ENOENT), err == nil:
			return nil
		case errors.Is(err, unix.EBUSY):
			return mountError(dir, name)
		default:
			return pathError("rename", dir, name, err)
		}
	}
}

// unlink removes a file, a link or an empty directory.
func unlink(dir *os.File, name string) error {
	err := unix.Unlinkat(int(dir.Fd()), name, 0)
	if errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR)
	}
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST), errors.Is(err, unix.ENOTDIR):
		// ENOTDIR: it was a directory a moment ago. The caller looks again in both cases.
		return pathError("remove", dir, name, unix.ENOTEMPTY)
	case errors.Is(err, unix.EBUSY):
		return mountError(dir, name)
	default:
		return pathError("remove", dir, name, err)
	}
}

// errMounted is the error of a removal at a mount point.
var errMounted = errors.New("something is mounted there: unmount it first")

func mountError(dir *os.File, name string) error {
	return pathError("remove", dir, name, errMounted)
}
