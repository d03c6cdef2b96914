package ownmounts

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// loopMajor is the number of loop devices in the kernel.
const loopMajor = 7

// Loop attaches a file to a loop device until the end of the test, and returns the device. A machine without loop
// devices skips the test, as Need does.
func Loop(t testing.TB, image string) (device string) {
	t.Helper()
	device, err := AttachLoop(image)
	if err != nil {
		Need(t, "loop devices", nextNode())
		t.Fatal(err)
	}
	t.Cleanup(func() {
		file, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(device), "loop/backing_file"))
		if err != nil || !strings.HasPrefix(string(file), image) {
			return // the test has detached it; another process may have it
		}
		if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
			t.Errorf("losetup: %v: %s", err, out)
		}
	})
	return device
}

// AttachLoop attaches a file to a free loop device, and returns the device.
func AttachLoop(image string) (device string, err error) {
	for range 100 { // another process may take the device that has got a node
		out, failed := exec.Command("losetup", "--find", "--show", image).CombinedOutput()
		if failed == nil {
			return strings.TrimSpace(string(out)), nil
		}
		err = fmt.Errorf("losetup: %w: %s", failed, out)
		if noNode := nextNode(); noNode != nil {
			return "", errors.Join(err, noNode)
		}
	}
	return "", err
}

// Attached returns the loop devices that are attached to a file whose path begins with prefix.
func Attached(t testing.TB, prefix string) (devices []string) {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Error(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && strings.HasPrefix(string(text), prefix) {
			devices = append(devices, filepath.Join("/dev", filepath.Base(filepath.Dir(filepath.Dir(file)))))
		}
	}
	return devices
}

// DetachBelow detaches the loop devices that are attached to files below a directory, at the end of the test: the code
// under test leaves some attached if the test fails.
func DetachBelow(t testing.TB, dir string) {
	t.Helper()
	t.Cleanup(func() {
		for _, device := range Attached(t, dir+"/") {
			if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
				t.Errorf("losetup: %v: %s", err, out)
			}
		}
	})
}

// nextNode makes the node of the next free loop device, if it has none: /dev of a container has only the nodes that the
// machine had when the container was started.
func nextNode() error {
	control, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/loop-control: %w", err)
	}
	defer unix.Close(control)
	free, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return fmt.Errorf("find a free loop device: %w", err)
	}
	err = unix.Mknod(fmt.Sprint("/dev/loop", free), unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, uint32(free))))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make /dev/loop%d: %w", free, err)
	}
	return nil
}
