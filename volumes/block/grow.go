package block

import (
	"context"
	"errors"
	"fmt"
)

// ErrNotGrown is in the chain of an error of Grow that another attempt would not mend: the file system has the size it
// had.
var ErrNotGrown = errors.New("the file system did not grow")

// Grow grows the file system of the device, which is mounted at point, to the size of the device. An error without
// ErrNotGrown leaves open whether it did.
func (d *Device) Grow(ctx context.Context, point string) error {
	found, err := d.look(ctx, false)
	if err != nil {
		return err
	}
	switch found.held {
	case "ext3", "ext4":
		return d.resize(ctx, "resize2fs", d.path)
	case "xfs":
		return d.resize(ctx, "xfs_growfs", "-d", point)
	case "btrfs":
		return d.resize(ctx, "btrfs", "filesystem", "resize", "max", point)
	}
	return fmt.Errorf("%w: %s holds %q, and only ext3, ext4, xfs and btrfs can grow", ErrNotGrown, d.path, found.held)
}

// growUnmounted grows an ext file system before it is mounted. That needs access to the device only, while the kernel
// grows a mounted one only for processes with CAP_SYS_RESOURCE.
func (d *Device) growUnmounted(ctx context.Context, held string) error {
	if held != "ext3" && held != "ext4" {
		return nil
	}
	const corrected = 1
	_, err := d.run(ctx, "e2fsck", "-f", "-p", d.path) // resize2fs requires it
	if code, exited := exitCode(err); err != nil && (!exited || code != corrected) {
		return err
	}
	return d.resize(ctx, "resize2fs", d.path)
}

// resize runs a tool that grows a file system. What it prints goes into the error.
func (d *Device) resize(ctx context.Context, tool string, args ...string) error {
	out, err := d.run(ctx, tool, args...)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("%w: %s: %w: %s", ErrNotGrown, tool, err, out)
}
