package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Release unmounts a device that is mounted on a file for a pod. A kubelet also holds such a device open by a loop
// device, which is detached first. It is no error if nothing is mounted, or if there is no such file.
func Release(path string) error {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	path = filepath.Join(dir, filepath.Base(path)) // as the kernel names it
	if err := detachLoops(path); err != nil {
		return err
	}
	return Unmount(path)
}

// detachLoops detaches the loop devices behind which a file is.
func detachLoops(path string) error {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || strings.TrimSuffix(string(text), "\n") != path {
			continue // one that cannot be read has just been detached
		}
		loop, err := os.Open("/dev/" + filepath.Base(filepath.Dir(filepath.Dir(file))))
		if err != nil {
			return err
		}
		_, err = unix.IoctlRetInt(int(loop.Fd()), unix.LOOP_CLR_FD)
		if errors.Is(err, unix.ENXIO) {
			err = nil // somebody else has detached it
		}
		if err = errors.Join(err, loop.Close()); err != nil {
			return fmt.Errorf("detach loop device %s: %w", loop.Name(), err)
		}
	}
	return nil
}
