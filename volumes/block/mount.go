package block

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/nodelet/nodelet/host/program"
)

// defaultType is the file system for a blank device whose volume does not name one.
const defaultType = "ext4"

// FileSystem is the file system that a volume asks for.
type FileSystem struct {
	Type     string // empty: ext4
	Options  []string
	ReadOnly bool
	// Grow makes the file system as large as the device.
	Grow bool
}

// Mount mounts the device, which is mounted nowhere else. It formats a blank device first, and repairs the file system
// of another.
func (d *Device) Mount(ctx context.Context, target string, fs FileSystem) error {
	if fs.Type == "" {
		fs.Type = defaultType
	}
	if err := checkType(fs.Type); err != nil {
		return err
	}
	found, err := d.look(ctx, false)
	switch {
	case err != nil:
		return err
	case found.held == "" && fs.ReadOnly:
		return fmt.Errorf("%s is not formatted, and a read-only volume is never formatted", d.path)
	case found.held == "":
		err = d.format(ctx, fs.Type, found)
	case !fs.ReadOnly:
		err = d.repair(ctx)
		if err == nil && fs.Grow {
			_ = d.growUnmounted(ctx, found.held) // Grow reports an error, once the file system is mounted
		}
	}
	if err == nil {
		err = ctx.Err() // the tools ran to their end all the same
	}
	if err == nil {
		err = d.unchanged()
	}
	if err != nil {
		return err
	}
	options := fs.Options
	if fs.ReadOnly {
		options = append([]string{"ro"}, options...)
	}
	err = Mount(ctx, fs.Type, d.path, target, options)
	if err != nil && found.held != "" && found.held != fs.Type {
		return fmt.Errorf("%w (it holds %s)", err, found.held)
	}
	return err
}

// checkType returns an error for a type that is not a plain name. A pod chooses the type of its iSCSI volume, and for
// the type "fuse.PROGRAM" mount(8) runs that program as root.
func checkType(fstype string) error {
	if strings.ContainsAny(fstype, "./") {
		return fmt.Errorf("%q is not the name of a file system for block devices", fstype)
	}
	return nil
}

// format makes a file system on a device on which an earlier look has found nothing, if a second look finds exactly the
// same.
func (d *Device) format(ctx context.Context, fstype string, first content) error {
	second, err := d.look(ctx, true)
	switch {
	case err != nil:
		return err
	case second.held != "":
		return fmt.Errorf("%s is not formatted: it holds %s", d.path, second.held)
	case second != first:
		const text = "%s is not formatted: its contents changed while they were read: does another node use it?"
		return fmt.Errorf(text, d.path)
	}
	var args []string
	if fstype == "ext3" || fstype == "ext4" {
		args = []string{"-F", "-m0"} // no questions, no blocks reserved for root
	}
	if out, err := d.run(ctx, "mkfs."+fstype, append(args, d.path)...); err != nil {
		return fmt.Errorf("format %s: mkfs.%s: %w: %s", d.path, fstype, err, out)
	}
	return nil
}

// repair runs fsck. It returns an error if errors are left or fsck did not end by itself. If fsck cannot check this
// file system at all, mount decides.
func (d *Device) repair(ctx context.Context) error {
	const uncorrected = 4 // exit codes of fsck are sums
	out, err := d.run(ctx, "fsck", "-a", d.path)
	code, exited := exitCode(err)
	switch {
	case err == nil, errors.Is(err, exec.ErrNotFound), exited && code&uncorrected == 0:
		return nil
	case exited:
		return fmt.Errorf("fsck found errors on %s that it cannot correct: %s", d.path, out)
	}
	return fmt.Errorf("repair %s: fsck: %w: %s", d.path, err, out)
}

// Mount runs mount(8) for any file system. What it prints goes into the error.
func Mount(ctx context.Context, fstype, source, target string, options []string) error {
	args := []string{"-t", fstype}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	out, err := program.Command(ctx, "mount", append(args, "--", source, target)...).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("mount %s: there is no mount tool on this node: install util-linux", fstype)
	}
	if err != nil {
		return fmt.Errorf("mount -t %s %s: %w: %s", fstype, source, err, strings.TrimSpace(string(out)))
	}
	return nil
}
