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

// Watch calls killed for each victim that the kernel selects from now on because the machine is out of memory, until
// ctx ends. It leaves out the processes that the kernel kills with one because they are in its cgroup. Without the
// kernel's log, as in some containers, it returns at once.
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
	const longest = uint64(time.Second / time.Microsecond) // between two messages about the kill of one cgroup
	record := make([]byte, maxRecord)
	var group uint64 // the time of the last message about the kill of a whole cgroup; 0: there is none
	for {
		n, err := r.Read(record)
		switch {
		case errors.Is(err, unix.EPIPE): // the kernel has overwritten records that were not read
			continue
		case err != nil:
			return err
		}
		message, at := parse(record[:n])
		v, isKill := victim(message)
		switch {
		case bytes.Contains(message, invokedKiller):
			group = 0
		case bytes.HasSuffix(message, wholeCgroup):
			group = at
		case isKill && group > 0 && at <= group+longest:
			group = at
		case isKill:
			group = 0
			killed(v)
		}
	}
}

var (
	// kill is the kernel's message about a kill because of the machine. That about a kill because of a cgroup's limit
	// begins with "Memory cgroup out of memory".
	kill = regexp.MustCompile(`^Out of memory[^:]*: Killed process ([0-9]+) \((.*)\) total-vm:`)
	// wholeCgroup ends the message that the kernel kills the cgroup of the last victim too (memory.oom.group). A
	// message about the kill of each of its processes follows, mostly one about the victim again.
	wholeCgroup = []byte(" are going to be killed due to memory.oom.group set")
	// invokedKiller is in the message with which the kernel says that it needs a victim. It leaves that message out
	// when it has written many.
	invokedKiller = []byte(" invoked oom-killer: ")
)

// parse returns the message of a record of the kernel, and its time in microseconds. A record is
// "PRIORITY,SEQUENCE,TIME,FLAGS;MESSAGE\n" with lines of attributes behind it. Programs can write records too, but only
// the kernel writes those of facility 0.
func parse(record []byte) (message []byte, at uint64) {
	prefix, message, _ := bytes.Cut(record, []byte(";"))
	fields := bytes.Split(prefix, []byte(","))
	if priority, err := strconv.Atoi(string(fields[0])); err != nil || priority>>3 != 0 || len(fields) < 3 {
		return nil, 0
	}
	at, err := strconv.ParseUint(string(fields[2]), 10, 64)
	if err != nil {
		return nil, 0
	}
	message, _, _ = bytes.Cut(message, []byte("\n"))
	return message, at
}

// victim returns the process that a message of the kernel is about, if it is about a kill because of the machine.
func victim(message []byte) (v Victim, ok bool) {
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
