package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// defaultFS is what a blank device gets whose volume does not say.
const defaultFS = "ext4"

// localDevice is a device of the node that holds the file system of a local volume.
type localDevice struct {
	path, fstype string
	options      []string
	readOnly     bool
	grow         bool // it shall have the size of the device
}

// lockDevice keeps others, udev among them, from looking at a device or writing to it while it is formatted. The lock goes with
// the file, and so with the process.
func lockDevice(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// mount mounts the device, which is mounted nowhere else, after it was formatted, if it is blank, or else repaired.
func (d localDevice) mount(ctx context.Context, target string) error {
	if d.fstype == "" {
		d.fstype = defaultFS
	}
	held, err := contentOf(ctx, d.path)
	switch {
	case err != nil:
		return err
	case held == "" && d.readOnly:
		return fmt.Errorf("%s is not formatted, and may not be, as the volume is read-only", d.path)
	case held == "":
		err = d.format(ctx)
	case !d.readOnly:
		err = repair(ctx, d.path)
		if err == nil && d.grow {
			_ = growUnmounted(ctx, d.path, held) // Grow has the last word, once it is mounted
		}
	}
	if err != nil {
		return err
	}
	options := d.options
	if d.readOnly {
		options = append([]string{"ro"}, options...)
	}
	if err := mountByTool(ctx, d.fstype, d.path, target, options); err != nil {
		if held != "" && held != d.fstype {
			return fmt.Errorf("%w (it holds %s)", err, held)
		}
		return err
	}
	return nil
}

// contentOf says what a device holds: the name of a file system, or something else that must not be written over; empty if
// it is blank.
func contentOf(ctx context.Context, device string) (string, error) {
	said, err := exec.CommandContext(ctx, "blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 2 { // nothing that it knows
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look what %s holds: blkid: %w", device, err)
	}
	held := ""
	for line := range strings.Lines(string(said)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch {
		case name == "TYPE":
			return value, nil
		case name == "PTTYPE":
			held = "a partition table (" + value + ")"
		}
	}
	if held == "" {
		return "", fmt.Errorf("look what %s holds: blkid said %q", device, said)
	}
	return held, nil
}

func (d localDevice) format(ctx context.Context) error {
	args := []string{d.path}
	switch d.fstype {
	case "ext3", "ext4":
		args = []string{"-F", "-m0", d.path} // nothing is kept back for root
	case "xfs":
		args = []string{"-f", d.path}
	}
	said, err := exec.CommandContext(ctx, "mkfs."+d.fstype, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("format %s: mkfs.%s: %w: %s", d.path, d.fstype, err, strings.TrimSpace(string(said)))
	}
	return nil
}

// repair has fsck mend what it can by itself. A file system that it cannot mend is not mounted; where it cannot look at all, mount
// has the last word.
func repair(ctx context.Context, device string) error {
	const uncorrected = 4
	said, err := exec.CommandContext(ctx, "fsck", "-a", device).CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == uncorrected {
		return fmt.Errorf("fsck found errors on %s that it cannot correct: %s", device, strings.TrimSpace(string(said)))
	}
	return ctx.Err()
}
