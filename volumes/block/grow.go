package block

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// ErrNotGrown is in the chain of an error of Grow that is the tools' last word: the file system has the size it had.
var ErrNotGrown = errors.New("the file system did not grow")

// Grow brings the file system of a device to the device's size; it is mounted at point.
func Grow(ctx context.Context, device, point string) error {
	lock, err := Lock(device)
	if err != nil {
		return err
	}
	defer lock.Close()
	held, err := contentOf(ctx, device)
	if err != nil {
		return err
	}
	switch held {
	case "ext3", "ext4":
		return resize(ctx, "resize2fs", device)
	case "xfs":
		return resize(ctx, "xfs_growfs", "-d", point)
	case "btrfs":
		return resize(ctx, "btrfs", "filesystem", "resize", "max", point)
	}
	return fmt.Errorf("%w: %s holds %q, and only ext3, ext4, xfs and btrfs can be made larger", ErrNotGrown, device, held)
}

// growUnmounted makes an ext file system larger before it is mounted. Then it takes no capability but those for the device, while
// the kernel grows a mounted one only for those with CAP_SYS_RESOURCE.
func growUnmounted(ctx context.Context, device, held string) error {
	if held != "ext3" && held != "ext4" {
		return nil
	}
	const corrected = 1
	err := resize(ctx, "e2fsck", "-f", "-p", device) // resize2fs insists on it
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != corrected) {
		return err
	}
	return resize(ctx, "resize2fs", device)
}

// resize runs one of the tools that a growth takes. What it says of a failure goes into the error.
func resize(ctx context.Context, tool string, args ...string) error {
	said, err := exec.CommandContext(ctx, tool, args...).CombinedOutput()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("%w: there is no %s on this node: install it", ErrNotGrown, tool)
	}
	return fmt.Errorf("%w: %s: %w: %s", ErrNotGrown, tool, err, strings.TrimSpace(string(said)))
}
