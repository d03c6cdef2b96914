// Package filelock waits for the lock of a file that another process holds.
//
// It owns nothing: its callers, host/self for the root directory and volumes/block for devices, open and close the
// file, and say what it means that the lock is held. The kernel releases a lock when the last process that has the file
// open ends, so a crash leaves none behind.
package filelock

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Wait takes the exclusive lock of a file, see flock(2). While another process holds it, it tries again each interval:
// there is no call that waits and can be given up. When ctx ends, it returns the error of ctx.
func Wait(ctx context.Context, f *os.File, interval time.Duration) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
