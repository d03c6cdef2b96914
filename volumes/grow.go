package volumes

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// ErrNotGrown is in the chain of an error of Grow that is the tools' last word: the file system has the size it had.
var ErrNotGrown = errors.New("the file system did not grow")

// Grow brings the file system of a local device, which is mounted for the pod, to the size of its device. A directory, and a device
// that the pod has as such, have no file system of their own: nothing is done for them.
func (v *Volumes) Grow(ctx context.Context, p Persistent) error {
	s := p.PV.Spec.Local
	if s == nil || p.Block {
		return nil
	}
	device, err := isDevice(s.Path)
	if err != nil || !device {
		return err
	}
	lock, err := lockDevice(s.Path)
	if err != nil {
		return err
	}
	defer lock.Close()
	held, err := contentOf(ctx, s.Path)
	if err != nil {
		return err
	}
	point := v.hostPath(p.Pod.UID, OnDisk{pluginLocal, p.PV.Name})
	switch held {
	case "ext3", "ext4":
		return resize(ctx, "resize2fs", s.Path)
	case "xfs":
		return resize(ctx, "xfs_growfs", "-d", point)
	case "btrfs":
		return resize(ctx, "btrfs", "filesystem", "resize", "max", point)
	}
	return fmt.Errorf("%w: %s holds %q, and only ext3, ext4, xfs and btrfs can be made larger", ErrNotGrown, s.Path, held)
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
