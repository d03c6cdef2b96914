package mounts

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/ownmounts"
)

// testDevice returns a loop device with a file of its own behind it, and whether that is still so: the kernel gives the
// device away as soon as it is detached and no process has it open.
func testDevice(t *testing.T) (device string, there func() bool) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 1<<20)); err != nil {
		t.Fatal(err)
	}
	device = ownmounts.Loop(t, image)
	return device, func() bool {
		loops, err := loopsOf(image)
		if err != nil {
			t.Fatal(err)
		}
		return len(loops) > 0
	}
}

// testDir returns a directory. What a test that fails leaves held there is released.
func testDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	ownmounts.DetachBelow(t, dir)
	return dir
}

// release calls Release. A process that another test forks has the loop device open until it runs its program.
func release(t *testing.T, path string) {
	t.Helper()
	err := Release(path)
	for errors.Is(err, unix.EBUSY) && t.Context().Err() == nil {
		time.Sleep(10 * time.Millisecond)
		err = Release(path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// checkHeld checks that a device is mounted on a path, and that one loop device holds it.
func checkHeld(t *testing.T, device, path string) {
	t.Helper()
	if loops, err := loopsOf(path); err != nil || len(loops) != 1 || !SameDevice(device, path) {
		t.Errorf("got loop devices %q, %v at %s, want the one that holds %s", loops, err, path, device)
	}
}

// makeNode makes another node of a device.
func makeNode(t *testing.T, node, device string) {
	t.Helper()
	n, err := number(device)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(node, unix.S_IFBLK|0o600, int(n)); err != nil {
		t.Fatal(err)
	}
}

// TestHold checks that the kernel does not give the number of a device that is held to another one when the device goes
// away, also if its file in /dev is deleted, and that Release leaves nothing behind.
func TestHold(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: loop devices and mounts")
	}
	device, there := testDevice(t)
	dir := testDir(t)
	node, path := filepath.Join(dir, "node"), filepath.Join(dir, "held")
	makeNode(t, node, device)
	for range 2 {
		if err := Hold(node, path); err != nil {
			t.Fatal(err)
		}
	}
	checkHeld(t, device, path)
	if err := errors.Join(detachLoop(device), os.Remove(node)); err != nil {
		t.Fatal(err)
	}
	if !there() {
		t.Error("the kernel has given the device away although it is held")
	}
	release(t, path)
	if there() || At(path) {
		t.Errorf("after Release: device is there: %v, mounted: %v, want neither", there(), At(path))
	}
	release(t, path)
}

// TestHoldAnother checks that a device takes the place of another one.
func TestHoldAnother(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: loop devices and mounts")
	}
	path := filepath.Join(testDir(t), "held")
	for range 2 {
		device, _ := testDevice(t)
		if err := Hold(device, path); err != nil {
			t.Fatal(err)
		}
		checkHeld(t, device, path)
	}
	release(t, path)
}

// TestHoldMissing checks that a device is not released when the link to it leads nowhere any more: it has gone away,
// and the link may lead to another one next.
func TestHoldMissing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: loop devices and mounts")
	}
	device, _ := testDevice(t)
	dir := testDir(t)
	node, link := filepath.Join(dir, "node"), filepath.Join(dir, "link")
	path := filepath.Join(dir, "held")
	makeNode(t, node, device)
	if err := errors.Join(os.Symlink(node, link), Hold(link, path), os.Remove(node)); err != nil {
		t.Fatal(err)
	}
	if err := Hold(link, path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want that the device is missing", err)
	}
	checkHeld(t, device, path)
	release(t, path)
}

// TestHoldFails checks that a device that cannot be held is not left mounted: next time, another one may be at its
// path.
func TestHoldFails(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts")
	}
	dir := testDir(t)
	node, path := filepath.Join(dir, "node"), filepath.Join(dir, "held")
	// No driver has this number: it is kept for local use.
	if err := unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(127, 0))); err != nil {
		t.Fatal(err)
	}
	if err := Hold(node, path); err == nil {
		t.Error("got no error for a device without a driver")
	}
	if At(path) {
		t.Error("got it left mounted, want it unmounted")
	}
}

// TestHoldNoDevice checks that nothing is done for what is no block device, and that a missing one is an error.
func TestHoldNoDevice(t *testing.T) {
	dir := testDir(t)
	path := filepath.Join(dir, "held")
	if err := Hold(dir, path); err != nil {
		t.Error(err)
	}
	if err := Hold(filepath.Join(dir, "missing"), path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing device: got %v, want an error", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v for the file, want none", err)
	}
}
