package block

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/ownmounts"
)

func TestMain(m *testing.M) { ownmounts.Main(m) }

const imageSize = 32 << 20

// disk is a loop device and the file behind it.
type disk struct {
	t      *testing.T
	device string
	image  string
}

func newDisk(t *testing.T) *disk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes loop devices")
	}
	d := &disk{t: t, image: filepath.Join(t.TempDir(), "image")}
	must(t, os.WriteFile(d.image, nil, 0o600))
	must(t, os.Truncate(d.image, imageSize))
	d.device = ownmounts.Loop(t, d.image)
	return d
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (d *disk) tool(name string, args ...string) string {
	d.t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		d.t.Fatalf("%s: %v: %s", name, err, out)
	}
	return string(out)
}

// withData puts a file system with a label on the disk.
func (d *disk) withData() *disk {
	d.t.Helper()
	d.tool("mkfs.ext4", "-q", "-L", "precious", d.device)
	d.dropCache()
	return d
}

// dropCache makes the next look at the device read the image.
func (d *disk) dropCache() {
	d.t.Helper()
	d.tool("blockdev", "--flushbufs", d.device)
}

func (d *disk) content() []byte {
	d.t.Helper()
	text, err := os.ReadFile(d.image)
	must(d.t, err)
	return text
}

// label is that of the ext4 file system on the disk.
func (d *disk) label() string {
	return string(bytes.TrimRight(d.content()[1024+120:][:16], "\x00"))
}

// write puts bytes into the device.
func (d *disk) write(at int64, data []byte) {
	d.t.Helper()
	f, err := os.OpenFile(d.device, os.O_WRONLY, 0)
	must(d.t, err)
	_, err = f.WriteAt(data, at)
	must(d.t, errors.Join(err, f.Sync(), f.Close()))
	d.dropCache()
}

// mount mounts the disk's file system, or formats it. Nothing is left mounted.
func (d *disk) mount(ctx context.Context, path string) error {
	point := d.t.TempDir()
	device, err := Open(ctx, path)
	if err != nil {
		return err
	}
	defer device.Close()
	if err := device.Mount(ctx, point, FileSystem{}); err != nil {
		return err
	}
	return unix.Unmount(point, 0)
}

// refused checks that the device is neither formatted nor otherwise changed.
func (d *disk) refused(path, words string) {
	d.t.Helper()
	before := d.content()
	err := d.mount(d.t.Context(), path)
	if err == nil || !strings.Contains(err.Error(), words) {
		d.t.Errorf("got error %v, want one with %q", err, words)
	}
	if !bytes.Equal(before, d.content()) {
		d.t.Error("got a changed device, want it as it was")
	}
}

// around puts a script into the place of a tool; in it, $real is the path of the tool.
func around(t *testing.T, tool, script string) {
	t.Helper()
	path, err := exec.LookPath(tool)
	must(t, err)
	dir := t.TempDir()
	text := fmt.Sprintf("#!/bin/sh\nreal=%s\n%s\n", path, script)
	must(t, os.WriteFile(filepath.Join(dir, tool), []byte(text), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// outage is a script during whose run every read of the disk is an error.
func (d *disk) outage(during string) string {
	return fmt.Sprintf(`
cp --sparse=always %[1]s %[1]s.kept; truncate -s 0 %[1]s; blockdev --flushbufs %[2]s
%[3]s; rc=$?
cat %[1]s.kept > %[1]s; blockdev --flushbufs %[2]s
exit $rc`, d.image, d.device, during)
}

func TestBlankDeviceIsFormatted(t *testing.T) {
	d := newDisk(t)
	must(t, d.mount(t.Context(), d.device))
	if got := d.tool("blkid", "-p", "-o", "value", "-s", "TYPE", d.device); got != "ext4\n" {
		t.Errorf("got file system %q, want ext4", got)
	}
}

// TestTypeIsAName checks that a pod cannot have mount(8) run a program of its choice: of the type fuse.x it runs x.
func TestTypeIsAName(t *testing.T) {
	called := filepath.Join(t.TempDir(), "called")
	around(t, "mount", fmt.Sprintf(`echo "$*" >> %s`, called))
	for name, d := range map[string]*disk{"blank": newDisk(t), "with data": newDisk(t).withData()} {
		for _, fstype := range []string{"fuse./proc/1/root/bin/x", "fuse.x", "../x", "ext4,fuse.x"} {
			device, err := Open(t.Context(), d.device)
			must(t, err)
			err = device.Mount(t.Context(), t.TempDir(), FileSystem{Type: fstype})
			must(t, device.Close())
			if err == nil || !strings.Contains(err.Error(), "is not the name of a file system") {
				t.Errorf("%s device: got error %v for type %q, want that it is no name", name, err, fstype)
			}
		}
	}
	if got, err := os.ReadFile(called); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got mount called with %q (%v), want it not called", got, err)
	}
}

// TestWipedDeviceIsFormatted checks that what is left behind the signatures that wipefs removes does not keep a
// device from use: no tool knows it.
func TestWipedDeviceIsFormatted(t *testing.T) {
	d := newDisk(t).withData()
	d.tool("wipefs", "--all", "--quiet", d.device)
	must(t, d.mount(t.Context(), d.device))
}

// TestUnreadableDeviceIsNotFormatted checks that a device all of whose reads fail is not blank, although blkid exits
// as it does for a blank one.
func TestUnreadableDeviceIsNotFormatted(t *testing.T) {
	d := newDisk(t).withData()
	must(t, os.Truncate(d.image, 0))
	d.dropCache()
	if err := d.mount(t.Context(), d.device); err == nil || !strings.Contains(err.Error(), "input/output error") {
		t.Errorf("got error %v, want an input/output error", err)
	}
}

// TestOutageDuringFirstLook checks an outage during the first look, which ends before the device would be formatted.
func TestOutageDuringFirstLook(t *testing.T) {
	d := newDisk(t).withData()
	first := filepath.Join(t.TempDir(), "first")
	around(t, "blkid", fmt.Sprintf(`if mkdir %s 2>/dev/null; then %s; fi; exec $real "$@"`, first, d.outage(`$real "$@"`)))
	must(t, d.mount(t.Context(), d.device))
	if got := d.label(); got != "precious" {
		t.Errorf("got label %q, want the one from before", got)
	}
}

// TestOutageDuringEveryLook checks an outage in which all reads fail each time blkid looks at the device; all other
// reads succeed.
func TestOutageDuringEveryLook(t *testing.T) {
	d := newDisk(t).withData()
	around(t, "blkid", fmt.Sprintf(`case "$*" in *%s) %s;; esac; exec $real "$@"`, d.device, d.outage(`$real "$@"`)))
	must(t, d.mount(t.Context(), d.device))
	if got := d.label(); got != "precious" {
		t.Errorf("got label %q, want the one from before", got)
	}
}

func TestBlkidThatComplainsIsNotBelieved(t *testing.T) {
	d := newDisk(t)
	around(t, "blkid", `echo "error: cannot read" >&2; exit 2`)
	d.refused(d.device, "cannot read")
}

func TestMissingDevice(t *testing.T) {
	d := newDisk(t)
	if err := d.mount(t.Context(), "/dev/does-not-exist"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got error %v, want that the device does not exist", err)
	}
}

// TestFileIsNoDevice checks that a file in place of the device would be formatted as well.
func TestFileIsNoDevice(t *testing.T) {
	d := newDisk(t)
	path := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(path, make([]byte, imageSize), 0o600))
	d.refused(path, "not a block device")
}

// TestDeviceIsSwapped checks a device whose name comes to mean another one while it is looked at.
func TestDeviceIsSwapped(t *testing.T) {
	blank, other := newDisk(t), newDisk(t).withData()
	name := filepath.Join(t.TempDir(), "by-id")
	must(t, os.Symlink(blank.device, name))
	around(t, "blkid", fmt.Sprintf(`$real "$@"; rc=$?; ln -sfn %s %s; exit $rc`, other.device, name))
	before := other.content()
	err := other.mount(t.Context(), name)
	if !bytes.Equal(before, other.content()) {
		t.Errorf("got the other device changed (%v), want it as it was", err)
	}
}

// TestDeviceChangesBetweenLooks checks that the data comes while the device is looked at: another node writes to a
// shared LUN, or the path leads to another LUN.
func TestDeviceChangesBetweenLooks(t *testing.T) {
	d, source := newDisk(t), newDisk(t).withData()
	around(t, "blkid", fmt.Sprintf(`$real "$@"; rc=$?
case "$*" in *%[1]s) if mkdir %[2]s.done 2>/dev/null; then cat %[2]s > %[3]s; blockdev --flushbufs %[1]s; fi;; esac
exit $rc`, d.device, source.image, d.image))
	err := d.mount(t.Context(), d.device)
	if got := d.label(); got != "precious" {
		t.Errorf("got label %q (%v), want that of the data", got, err)
	}
}

// TestDeviceInUseIsNotFormatted checks that what uses a device without a signature holds it exclusively.
func TestDeviceInUseIsNotFormatted(t *testing.T) {
	d := newDisk(t)
	fd, err := unix.Open(d.device, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	d.refused(d.device, "in use")
}

// TestSignatures checks one signature of each place: the first sector, behind it, the first MiBs, the end.
func TestSignatures(t *testing.T) {
	luks := append([]byte("LUKS\xba\xbe\x00\x01"), make([]byte, 504)...)
	lvm := make([]byte, 512)
	copy(lvm, "LABELONE")
	lvm[8], lvm[20] = 1, 32
	copy(lvm[24:], "LVM2 001")
	binary.LittleEndian.PutUint32(lvm[16:], ^lvmSum(lvm[20:]))
	raid := make([]byte, 256)
	const raidAt = (imageSize/512 - 16) &^ 7 * 512
	binary.LittleEndian.PutUint32(raid, 0xa92b4efc)
	raid[4] = 1
	binary.LittleEndian.PutUint64(raid[144:], raidAt/512)
	for _, c := range []struct {
		name string
		at   int64
		data []byte
		want string
	}{
		{"luks", 0, luks, "crypto_LUKS"},
		{"xfs", 0, xfsHeader(), "xfs"},
		{"lvm", 512, lvm, "LVM2_member"},
		{"swap", 1024, swapHeader(), "swap"},
		{"vmfs", 1 << 20, vmfsHeader(), "VMFS_volume_member"},
		{"raid at the end", raidAt, raid, "linux_raid_member"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDisk(t)
			d.write(c.at, c.data)
			if got, _ := exec.Command("blkid", "-p", "-o", "value", "-s", "TYPE", d.device).Output(); string(got) != c.want+
				"\n" {
				t.Fatalf("blkid finds %q, want %q: the test's data is wrong", got, c.want)
			}
			d.refused(d.device, c.want)
			around(t, "blkid", fmt.Sprintf(`case "$*" in *%s) %s;; esac; exec $real "$@"`, d.device, d.outage(`$real "$@"`)))
			d.refused(d.device, c.want) // the copy shows it as well
		})
	}
}

func lvmSum(data []byte) uint32 { return crc32.Update(^uint32(0xf597a6cf), crc32.IEEETable, data) }

func xfsHeader() []byte {
	h := make([]byte, 512)
	copy(h, "XFSB")
	for at, v := range map[int]uint32{4: 4096, 80: 1, 84: 2048, 88: 4} {
		// block size, extent size, blocks of a group, groups
		binary.BigEndian.PutUint32(h[at:], v)
	}
	binary.BigEndian.PutUint64(h[8:], 8192) // blocks
	for at, v := range map[int]uint16{100: 4, 102: 512, 104: 512, 106: 8} {
		binary.BigEndian.PutUint16(h[at:], v)
	}
	for at, v := range map[int]byte{120: 12, 121: 9, 122: 9, 123: 3, 124: 11} {
		h[at] = v
	}
	return h
}

func swapHeader() []byte {
	h := make([]byte, 3072)
	h[0] = 1                                            // version
	binary.LittleEndian.PutUint32(h[4:], 1000)          // last page
	copy(h[4096-1024-len("SWAPSPACE2"):], "SWAPSPACE2") // at the end of the first page
	return h
}

func vmfsHeader() []byte {
	h := make([]byte, 512)
	copy(h, "\x0d\xd0\x01\xc0")
	return h
}
