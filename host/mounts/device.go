package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Hold mounts a block device on a file for a pod and holds it open by a loop device, as a kubelet does; what is done is
// not repeated, and another device that was held there before is released. The kernel does not give the number of an
// open device to another one: if the device goes away, a container that starts later gets errors, not another disk. The
// loop device is read-only and outlasts this process.
//
// The directory of the file must be there. What is no block device is left alone: no runtime gives it to a container. A
// device that is missing is an error, and what is held stays: it may be this device.
func Hold(device, path string) error {
	source, err := os.OpenFile(device, unix.O_PATH, 0) // what a link leads to may change
	if err != nil {
		return fmt.Errorf("hold block device: %w", err)
	}
	defer source.Close()
	if err := holdOpened(source, path); err != nil {
		return fmt.Errorf("hold block device %s: %w", device, err)
	}
	return nil
}

func holdOpened(source *os.File, path string) error {
	wanted, err := number(opened(source))
	if err != nil || wanted == 0 {
		return err
	}
	if At(path) {
		held, err := number(path)
		if err == nil && held != wanted {
			err = Release(path)
		}
		if err != nil {
			return err
		}
	}
	bound := !At(path)
	if bound {
		if err := BindDevice(source, path); err != nil {
			return err
		}
	}
	if err := holdMounted(path); err != nil {
		if bound {
			err = errors.Join(err, Unmount(path))
		}
		return fmt.Errorf("attach a loop device: %w", err)
	}
	return nil
}

// holdMounted attaches a loop device to the device that is mounted on a file, unless one is.
func holdMounted(path string) error {
	name, err := kernelName(path)
	if err != nil {
		return err
	}
	if loops, err := loopsOf(name); err != nil || len(loops) > 0 {
		return err
	}
	file, err := os.OpenFile(path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	return attachLoop(file)
}

// SameDevice reports whether two paths lead to the same block device.
func SameDevice(a, b string) bool {
	one, errOne := number(a)
	two, errTwo := number(b)
	return errOne == nil && errTwo == nil && one != 0 && one == two
}

// number returns the number of a block device, links followed; 0 for what is none.
func number(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, nil
	}
	return st.Rdev, nil
}

// Held returns the file that is behind a loop device, as the kernel names it; empty if the path leads to none. A link
// such as those in /dev/disk/by-uuid may lead to the loop device that holds the disk.
func Held(path string) string {
	n, err := number(path)
	if err != nil || unix.Major(n) != loopMajor {
		return ""
	}
	return backing(fmt.Sprintf("/sys/dev/block/%d:%d/loop/backing_file", loopMajor, unix.Minor(n)))
}

// backing returns what a file of sysfs says, empty if the loop device is attached to nothing. When a disk goes away,
// its file in /dev is deleted, and the kernel says so.
func backing(file string) string {
	text, _ := os.ReadFile(file)
	return strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), " (deleted)")
}

// BindDevice mounts an open block device on a file, which it creates if it is missing. The file stays this device even
// if another one gets its name.
func BindDevice(device *os.File, path string) error {
	file, err := os.OpenFile(path, unix.O_RDONLY|unix.O_CREAT|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	if err := unix.Mount(opened(device), path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind mount block device %s: %w", device.Name(), err)
	}
	return nil
}

// opened returns a path that leads to an open file.
func opened(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// attachTries bounds the attempts to attach a loop device: others may take the free one first.
const attachTries = 100

// attachLoop attaches a free loop device to an open file. It is read-only, as it is opened so.
func attachLoop(file *os.File) error {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0) // loads the kernel module
	if err != nil {
		return err
	}
	defer control.Close()
	for range attachTries {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return fmt.Errorf("find a free loop device: %w", err)
		}
		loop, err := openLoop(n)
		if err != nil {
			return err
		}
		err = unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_FD, int(file.Fd()))
		if err = errors.Join(err, loop.Close()); !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	return unix.EBUSY
}

// loopMajor is the major number of loop devices.
const loopMajor = 7

// openLoop opens a loop device. /dev of a container has only the nodes that were there when it started.
func openLoop(n int) (*os.File, error) {
	node := fmt.Sprintf("/dev/loop%d", n)
	loop, err := os.Open(node)
	if errors.Is(err, os.ErrNotExist) {
		err = unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, uint32(n))))
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, &os.PathError{Op: "mknod", Path: node, Err: err}
		}
		loop, err = os.Open(node)
	}
	return loop, err
}

// kernelName returns a path as the kernel names it: without links in its directory.
func kernelName(path string) (string, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	return filepath.Join(dir, filepath.Base(path)), err
}

// Release undoes Hold, also that of a kubelet. It is no error if nothing is mounted, or if there is no such file.
func Release(path string) error {
	path, err := kernelName(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	loops, err := loopsOf(path)
	if err != nil {
		return err
	}
	for _, name := range loops {
		if err := detachLoop(name); err != nil {
			return fmt.Errorf("detach loop device %s: %w", name, err)
		}
	}
	return Unmount(path)
}

// loopsOf returns the loop devices behind which a file is, such as /dev/loop3.
func loopsOf(path string) (loops []string, err error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range files {
		if backing(file) == path {
			loops = append(loops, "/dev/"+filepath.Base(filepath.Dir(filepath.Dir(file))))
		}
	}
	return loops, err
}

func detachLoop(name string) error {
	loop, err := os.Open(name)
	if err != nil {
		return err
	}
	_, err = unix.IoctlRetInt(int(loop.Fd()), unix.LOOP_CLR_FD)
	if errors.Is(err, unix.ENXIO) {
		err = nil // another process has detached it
	}
	return errors.Join(err, loop.Close())
}
