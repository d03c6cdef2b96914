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
// The directory of the file must be there. What is no block device is left alone: no runtime gives it to a container.
func Hold(device, path string) error {
	if At(path) && !SameDevice(device, path) {
		if err := Release(path); err != nil {
			return err
		}
	}
	if !At(path) {
		if isDevice, err := bind(device, path); err != nil || !isDevice {
			return err
		}
	}
	name, err := kernelName(path)
	if err != nil {
		return err
	}
	if loops, err := loopsOf(name); err != nil || len(loops) > 0 {
		return err
	}
	file, err := os.OpenFile(path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("hold a block device open: %w", err)
	}
	defer file.Close()
	if err := attachLoop(file); err != nil {
		return fmt.Errorf("hold block device %s open by a loop device: %w", device, err)
	}
	return nil
}

// SameDevice reports whether two paths lead to the same block device.
func SameDevice(a, b string) bool {
	one, two := number(a), number(b)
	return one != 0 && one == two
}

// number returns the number of a block device, links followed; 0 for anything else.
func number(path string) uint64 {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0
	}
	return st.Rdev
}

// bind mounts a device on a file. It reports whether there is a block device.
func bind(device, path string) (isDevice bool, err error) {
	source, err := os.OpenFile(device, unix.O_PATH, 0)
	if err != nil {
		return false, err
	}
	defer source.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(source.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return false, err
	}
	return true, BindDevice(source, path)
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
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", device.Fd()), path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind mount block device %s: %w", device.Name(), err)
	}
	return nil
}

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

// loopsOf returns the loop devices behind which a file is, such as /dev/loop3. When a disk goes away, its file in /dev
// is deleted.
func loopsOf(path string) (loops []string, err error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has just been detached
		}
		if strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), " (deleted)") == path {
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
		err = nil // somebody else has detached it
	}
	return errors.Join(err, loop.Close())
}
