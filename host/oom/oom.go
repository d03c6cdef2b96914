package oom

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/internal/backoff"
)

// Log is the kernel's log (Documentation/ABI/testing/dev-kmsg).
const Log = "/dev/kmsg"

// maxRecord is the maximum size of a record, as in the kernel.
const maxRecord = 8192

// Victim is a process that the kernel has killed.
type Victim struct {
	PID int
	// Name is the name of its program, at most 15 bytes; special characters are escaped as \xHH.
	Name string
}

// Message returns the message of the node's event SystemOOM, in the kubelet's words.
func (v Victim) Message() string {
	return fmt.Sprintf("System OOM encountered, victim process: %s, pid: %d", v.Name, v.PID)
}

// Watch calls killed for each process that the kernel kills from now on because the machine is out of memory, until ctx
// ends. Without the kernel's log, as in some containers, it returns at once.
func Watch(ctx context.Context, path string, log *slog.Logger, killed func(Victim)) {
	const (
		longest = 30 * time.Second
		trouble = "cannot read the kernel's log; processes that it kills for lack of memory are not reported"
	)
	if _, err := os.Stat(path); err != nil {
		log.Info(trouble, "err", err)
		return
	}
	backoff.Repeat(ctx, longest, func() error { return watch(ctx, path, killed) },
		func(err error, retryIn time.Duration) { log.Warn(trouble, "err", err, "retryIn", retryIn) })
}

// watch is Watch until an error.
func watch(ctx context.Context, path string, killed func(Victim)) error {
	// A descriptor that does not block can be closed during a read.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = f.Close() })()
	return follow(f, killed)
}

// follow reads records until a read fails. The kernel returns one record for each read.
func follow(r io.Reader, killed func(Victim)) error {
	record := make([]byte, maxRecord)
	for {
		n, err := r.Read(record)
		switch {
		case errors.Is(err, unix.EPIPE): // the kernel has overwritten records that were not read
			continue
		case err != nil:
			return err
		}
		if v, ok := parse(record[:n]); ok {
			killed(v)
		}
	}
}

// kill is the kernel's message about a kill because of the machine. That about a kill because of a cgroup's limit
// begins with "Memory cgroup out of memory".
var kill = regexp.MustCompile(`^Out of memory[^:]*: Killed process ([0-9]+) \((.*)\) total-vm:`)

// parse returns the victim that a record is about. A record is "PRIORITY,SEQUENCE,TIME,FLAGS;MESSAGE\n" with lines of
// attributes behind it. Programs can write records too, but only the kernel writes those of facility 0.
func parse(record []byte) (v Victim, ok bool) {
	prefix, message, _ := bytes.Cut(record, []byte(";"))
	first, _, _ := bytes.Cut(prefix, []byte(","))
	if priority, err := strconv.Atoi(string(first)); err != nil || priority < 0 || priority>>3 != 0 {
		return v, false
	}
	message, _, _ = bytes.Cut(message, []byte("\n"))
	found := kill.FindSubmatch(message)
	if found == nil {
		return v, false
	}
	pid, err := strconv.Atoi(string(found[1]))
	if err != nil || pid <= 0 {
		return v, false
	}
	return Victim{PID: pid, Name: string(found[2])}, true
}
