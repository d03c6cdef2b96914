package testbed

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestKeepMountNS keeps a mount namespace from within namespaces that were created on each of the CPUs.
func TestKeepMountNS(t *testing.T) {
	NeedPrograms(t, map[string]string{"unshare": "util-linux", "taskset": "util-linux"})
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		t.Fatal(err)
	}
	for cpu, left := 0, cpus.Count(); left > 0; cpu++ {
		if !cpus.IsSet(cpu) {
			continue
		}
		left--
		done := make(chan error)
		go func() { done <- keepFrom(t, cpu, cpus) }()
		if err := <-done; err != nil {
			t.Errorf("from a namespace made on CPU %d: got %v, want a namespace", cpu, err)
		}
	}
}

// keepFrom keeps a mount namespace from within another one, which it creates on that CPU. Its thread ends with it.
func keepFrom(t *testing.T, cpu int, all unix.CPUSet) error {
	runtime.LockOSThread()
	var one unix.CPUSet
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.SchedSetaffinity(0, &all); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	dir := t.TempDir()
	if err := private(dir); err != nil {
		return err
	}
	file := filepath.Join(dir, "mnt")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	return keepMountNS(t.Context(), file, "true")
}
