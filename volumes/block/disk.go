// Package block mounts block devices of the node: it looks what they hold, formats what is blank, repairs and enlarges file systems.
//
// It owns nothing, and runs the node's own tools: mount, blkid, fsck, mkfs and those that resize. It never writes over what a device holds,
// and never decides that a device is to be used. The rooms below volumes call it, who make sure that a device is mounted once. A crash
// leaves what the tools have come to; formatting begins anew where nothing is to be seen of a file system yet.
package block

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

// Device is a block device that holds the file system of a volume, or is to hold it.
type Device struct {
	Path     string
	FSType   string // empty: ext4
	Options  []string
	ReadOnly bool
	Grow     bool // the file system shall have the size of the device
}

// Lock keeps others, udev among them, from looking at a device or writing to it while it is formatted. The lock goes with
// the file, and so with the process.
func Lock(path string) (*os.File, error) {
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

// Mount mounts the device, which is mounted nowhere else and locked by the caller, after it was formatted, if it is blank, or else
// repaired.
func (d Device) Mount(ctx context.Context, target string) error {
	if d.FSType == "" {
		d.FSType = defaultFS
	}
	held, err := contentOf(ctx, d.Path)
	switch {
	case err != nil:
		return err
	case held == "" && d.ReadOnly:
		return fmt.Errorf("%s is not formatted, and may not be, as the volume is read-only", d.Path)
	case held == "":
		err = d.format(ctx)
	case !d.ReadOnly:
		err = repair(ctx, d.Path)
		if err == nil && d.Grow {
			_ = growUnmounted(ctx, d.Path, held) // Grow has the last word, once it is mounted
		}
	}
	if err != nil {
		return err
	}
	options := d.Options
	if d.ReadOnly {
		options = append([]string{"ro"}, options...)
	}
	if err := Mount(ctx, d.FSType, d.Path, target, options); err != nil {
		if held != "" && held != d.FSType {
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

func (d Device) format(ctx context.Context) error {
	args := []string{d.Path}
	switch d.FSType {
	case "ext3", "ext4":
		args = []string{"-F", "-m0", d.Path} // nothing is kept back for root
	case "xfs":
		args = []string{"-f", d.Path}
	}
	said, err := exec.CommandContext(ctx, "mkfs."+d.FSType, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("format %s: mkfs.%s: %w: %s", d.Path, d.FSType, err, strings.TrimSpace(string(said)))
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

// Mount runs mount(8), for any kind of file system. What it says of a failure goes into the error.
func Mount(ctx context.Context, fstype, source, target string, options []string) error {
	args := []string{"-t", fstype}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	cmd := exec.CommandContext(ctx, "mount", append(args, "--", source, target)...)
	said, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("mount %s: there is no mount tool on this node: install util-linux", fstype)
	}
	if err != nil {
		return fmt.Errorf("mount -t %s %s: %w: %s", fstype, source, err, strings.TrimSpace(string(said)))
	}
	return nil
}
