package block

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/filelock"
)

// Device is a block device that is open and locked.
type Device struct {
	path   string // with all links resolved
	file   *os.File
	number uint64 // the kernel does not reuse it while file is open
}

// Open opens a device and locks it, so that neither udev nor another step uses it meanwhile. It waits for the lock
// until ctx is done.
func Open(ctx context.Context, path string) (*Device, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(resolved, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	d := &Device{path: resolved, file: f}
	if d.number, err = deviceNumber(f); err == nil {
		err = d.lock(ctx)
	}
	if err == nil {
		err = d.unchanged()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return d, nil
}

// Close unlocks the device.
func (d *Device) Close() error { return d.file.Close() }

// MayHold reports whether what is mounted may be on the device. It is not known of a file system that has a number of
// its own, as btrfs has: that may be on several devices.
func (d *Device) MayHold(m *mountinfo.Info) bool {
	return m.Major == 0 || unix.Mkdev(uint32(m.Major), uint32(m.Minor)) == d.number
}

func deviceNumber(f *os.File) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, fmt.Errorf("%s is not a block device", f.Name())
	}
	return st.Rdev, nil
}

// lockInterval is how often lock tries to get a lock that another process holds.
const lockInterval = 200 * time.Millisecond

func (d *Device) lock(ctx context.Context) error {
	err := filelock.Wait(ctx, d.file, lockInterval)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ctx.Err()):
		return fmt.Errorf("lock %s: another process holds the lock (mkfs, fsck, udev?): %w", d.path, err)
	}
	return fmt.Errorf("lock %s: %w", d.path, err)
}

// unchanged returns an error unless the path still leads to the open device.
func (d *Device) unchanged() error {
	var st unix.Stat_t
	if err := unix.Stat(d.path, &st); err != nil {
		return fmt.Errorf("stat %s: %w", d.path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || st.Rdev != d.number {
		return fmt.Errorf("%s has become another device", d.path)
	}
	return nil
}
