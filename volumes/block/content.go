package block

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// Signatures are in the first headSize and the last tailSize bytes of a device: the second LUKS header is at 4 MiB at
// most, the superblocks of RAIDs are in the last 1.5 MiB. Both are multiples of readSize.
const (
	headSize = 8 << 20
	tailSize = 4 << 20
	readSize = 1 << 20
)

// content is what one look at a device has found.
type content struct {
	held string            // a file system's name, or a description of other contents; empty: no signature
	sum  [sha256.Size]byte // of all places where signatures can be; only set if held is empty
}

// look finds out what the device holds. Exclusive refuses a device that is in use. An error means that nothing is
// known.
func (d *Device) look(ctx context.Context, exclusive bool) (content, error) {
	held, err := blkid(ctx, d.path)
	if err != nil || held != "" {
		return content{held: held}, err
	}
	signatures, sum, err := d.copySignatures(ctx, exclusive)
	if err != nil {
		return content{}, err
	}
	defer signatures.Close()
	held, err = blkid(ctx, "/proc/self/fd/3", signatures)
	return content{held: held, sum: sum}, err
}

// blkid returns the signature that blkid finds, empty if it finds none or cannot read the device. It inherits files,
// from number 3 on.
func blkid(ctx context.Context, path string, files ...*os.File) (string, error) {
	const nothingFound = 2
	cmd := exec.CommandContext(ctx, "blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", path)
	var out, complaint strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaint
	cmd.ExtraFiles = files
	err := cmd.Run()
	code, exited := exitCode(err)
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "", errors.New("there is no blkid on this node: install util-linux")
	case exited && code == nothingFound && out.Len() == 0 && complaint.Len() == 0:
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read what %s holds: blkid: %w: %s", path, err, strings.TrimSpace(complaint.String()))
	}
	return parseBlkid(path, out.String())
}

// parseBlkid reads what blkid prints on success. For a partition without a signature that is its name alone.
func parseBlkid(path, out string) (held string, err error) {
	values := map[string]string{}
	for line := range strings.Lines(out) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || strings.ContainsAny(name, " :\"") {
			return "", fmt.Errorf("read what %s holds: cannot parse blkid's output %q", path, out)
		}
		if value != "" {
			values[name] = value
		}
	}
	switch {
	case values["TYPE"] != "":
		return values["TYPE"], nil
	case values["PTTYPE"] != "":
		return "a partition table (" + values["PTTYPE"] + ")", nil
	case values["DEVNAME"] != "":
		return "", nil
	}
	return "", fmt.Errorf("read what %s holds: cannot parse blkid's output %q", path, out)
}

// copySignatures copies the places where signatures can be into a file in memory, which has the device's size and is
// zero elsewhere. It reads the device itself, not the page cache.
func (d *Device) copySignatures(ctx context.Context, exclusive bool) (
	signatures *os.File, sum [sha256.Size]byte, err error) {
	flags := os.O_RDONLY | unix.O_DIRECT | unix.O_NONBLOCK
	if exclusive {
		flags |= unix.O_EXCL
	}
	device, err := os.OpenFile(d.path, flags, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil, sum, fmt.Errorf("%s is in use (mounted, or part of LVM, RAID, multipath or swap): see lsblk", d.path)
	}
	if err != nil {
		return nil, sum, err
	}
	defer device.Close()
	if number, err := deviceNumber(device); err != nil || number != d.number {
		return nil, sum, errors.Join(err, d.unchanged())
	}
	if signatures, err = memoryFile("signatures"); err != nil {
		return nil, sum, err
	}
	digest := sha256.New()
	if err := copyEnds(ctx, signatures, device, digest); err != nil {
		return nil, sum, errors.Join(fmt.Errorf("read what %s holds: %w", d.path, err), signatures.Close())
	}
	return signatures, [sha256.Size]byte(digest.Sum(nil)), nil
}

// copyEnds copies the beginning and the end of a device, and adds all that it reads to the digest.
func copyEnds(ctx context.Context, to, device *os.File, digest hash.Hash) error {
	size, err := device.Seek(0, io.SeekEnd)
	switch {
	case err != nil:
		return err
	case size == 0:
		return errors.New("the device has no size")
	}
	if err := to.Truncate(size); err != nil {
		return err
	}
	// Aligned, as O_DIRECT requires.
	buffer, err := unix.Mmap(-1, 0, readSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(buffer) }()
	tail := max(headSize, (size-tailSize)/readSize*readSize)
	for at := int64(0); at < size; at += readSize {
		if at == headSize {
			at = tail
		}
		part := buffer[:min(readSize, size-at)]
		if err := errors.Join(ctx.Err(), copyPart(to, device, part, at)); err != nil {
			return err
		}
		digest.Write(part)
	}
	fmt.Fprint(digest, size)
	return nil
}

// copyPart copies one part. Zeros stay a hole, which takes no memory.
func copyPart(to, device *os.File, part []byte, at int64) error {
	if n, err := device.ReadAt(part, at); n < len(part) {
		return fmt.Errorf("read %d bytes at %d: %w", len(part), at, err)
	}
	for _, b := range part {
		if b != 0 {
			_, err := to.WriteAt(part, at)
			return err
		}
	}
	return nil
}
