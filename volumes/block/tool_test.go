package block

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pausing puts a tool in place that waits in the middle of its work. started is readable when it is there; a write to
// goOn lets it end; then ended exists.
func pausing(t *testing.T, tool string) (started, goOn, ended string) {
	t.Helper()
	dir := t.TempDir()
	started, ended = filepath.Join(dir, "started"), filepath.Join(dir, "ended")
	goOn = filepath.Join(dir, "go-on")
	must(t, errors.Join(unix.Mkfifo(started, 0o600), unix.Mkfifo(goOn, 0o600)))
	around(t, tool, fmt.Sprintf(`echo > %s; read line < %s; "$real" "$@"; rc=$?; : > %s; exit $rc`, started, goOn, ended))
	return started, goOn, ended
}

// outlives gives the caller's context up while a tool works, and checks that the tool ends by itself, with the device
// locked.
func outlives(t *testing.T, d *disk, tool string, do func(ctx context.Context) error) {
	t.Helper()
	started, goOn, ended := pausing(t, tool)
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	result := make(chan error, 1)
	go func() { result <- do(ctx) }()
	if _, err := os.ReadFile(started); err != nil {
		t.Fatal(err)
	}
	giveUp()
	f, err := os.Open(d.device)
	must(t, err)
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("got %v for the lock while %s works, want %v", err, tool, unix.EWOULDBLOCK)
	}
	pipe, err := os.OpenFile(goOn, os.O_RDWR, 0) // does not wait for a reader, which may have been killed
	must(t, err)
	defer pipe.Close()
	_, err = pipe.WriteString("\n")
	must(t, err)
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
	if _, err := os.Stat(ended); err != nil {
		t.Errorf("%s: got %v, want it to run to its end", tool, err)
	}
}

func TestToolsAreNotKilled(t *testing.T) {
	t.Run("fsck", func(t *testing.T) {
		d := newDisk(t).withData()
		outlives(t, d, "fsck", func(ctx context.Context) error { return d.mount(ctx, d.device) })
	})
	t.Run("mkfs", func(t *testing.T) {
		d := newDisk(t)
		outlives(t, d, "mkfs.ext4", func(ctx context.Context) error { return d.mount(ctx, d.device) })
	})
	t.Run("resize2fs", func(t *testing.T) {
		d := newDisk(t).withData()
		outlives(t, d, "resize2fs", func(ctx context.Context) error {
			device, err := Open(ctx, d.device)
			if err != nil {
				return err
			}
			defer device.Close()
			err = device.Grow(ctx, "/")
			if err == nil {
				err = ctx.Err() // the work was done
			}
			return err
		})
	})
}

// TestToolOutlastsTheAgent checks what a tool has of the agent: the lock, but no pipe, which would break when the
// agent ends.
func TestToolOutlastsTheAgent(t *testing.T) {
	d := newDisk(t).withData()
	seen := filepath.Join(t.TempDir(), "seen")
	around(t, "fsck", fmt.Sprintf(`files=$(for fd in 1 2 3; do readlink /proc/$$/fd/$fd; done); echo "$files" > %s`, seen))
	must(t, d.mount(t.Context(), d.device))
	text, err := os.ReadFile(seen)
	must(t, err)
	for i, want := range []string{"/memfd:", "/memfd:", d.device} {
		if got := strings.Split(string(text), "\n")[i]; !strings.HasPrefix(got, want) {
			t.Errorf("file %d: got %s, want %s", i+1, got, want)
		}
	}
}

func TestRepair(t *testing.T) {
	for _, c := range []struct{ name, script, want string }{
		{"nothing to do", "exit 0", ""},
		{"corrected, reboot wanted", "exit 3", ""},
		{"cannot check it", "exit 8", ""},
		{"errors are left", "echo block 7 is bad; exit 4", "cannot correct: block 7 is bad"},
		{"errors are left, and another failure", "exit 12", "cannot correct"},
		{"killed", "kill -9 $$", "killed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDisk(t).withData()
			around(t, "fsck", c.script)
			before := d.content()
			err := d.mount(t.Context(), d.device)
			if c.want == "" {
				must(t, err)
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one with %q", err, c.want)
			}
			if !bytes.Equal(before, d.content()) {
				t.Error("got a changed device, want it as it was: it was mounted")
			}
		})
	}
}

// TestLockIsGivenUp checks that the wait for a lock that another process holds can be given up.
func TestLockIsGivenUp(t *testing.T) {
	d := newDisk(t)
	other, err := Open(t.Context(), d.device)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, d.device); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v, want %v", err, context.DeadlineExceeded)
	}
	must(t, other.Close())
	again, err := Open(t.Context(), d.device)
	must(t, err)
	must(t, again.Close())
}

func TestParseBlkid(t *testing.T) {
	for _, c := range []struct{ name, out, want, err string }{
		{"file system", "DEVNAME=/dev/sda1\nTYPE=ext4\n", "ext4", ""},
		{"disk with partitions", "DEVNAME=/dev/sda\nPTTYPE=gpt\n", "a partition table (gpt)", ""},
		{"both", "DEVNAME=/dev/sda\nPTTYPE=dos\nTYPE=vfat\n", "vfat", ""},
		{"partition without a signature", "DEVNAME=/dev/sda1\n", "", ""},
		{"nothing", "", "", "cannot parse"},
		{"blkid of busybox", "/dev/sda1: LABEL=\"x\" TYPE=\"ext4\"\n", "", "cannot parse"},
	} {
		got, err := parseBlkid("/dev/sda", c.out)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: got %q, %v, want %q, %q", c.name, got, err, c.want, c.err)
		}
	}
}
