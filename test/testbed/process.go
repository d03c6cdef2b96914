package testbed

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Proc names a process for good: a PID alone is reused, a PID with its start time is not (until the next boot, which the
// state file notes as well).
type Proc struct {
	PID int `json:"pid"`
	// Start is the start time in clock ticks since boot: field 22 of /proc/PID/stat.
	Start uint64 `json:"start"`
}

// child is a process started by this process, which therefore has to reap it.
type child struct {
	Proc
	done chan struct{} // closed when the process has ended and is reaped
}

func (c *child) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// launch is what start needs to know of a process.
type launch struct {
	netns string // name below /run/netns; "" is the caller's
	mntns string // file of a mount namespace; "" is the caller's, and not looked at without netns
	log   string // standard output and error are appended here
	env   []string
	dir   string
	argv  []string
}

// start runs a process in a session of its own, so that it outlives the caller.
//
// The namespace is entered by nsenter, not "ip netns exec": the latter also unshares the mount namespace, and then a
// runtime would not see what its agent mounts.
func start(l launch) (*child, error) {
	argv := l.argv
	if l.netns != "" {
		enter := []string{"nsenter", "--net=" + filepath.Join(netnsDir, l.netns)}
		if l.mntns != "" {
			enter = append(enter, "--mount="+l.mntns)
		}
		argv = append(append(enter, "--"), argv...)
	}
	if err := os.MkdirAll(filepath.Dir(l.log), 0o755); err != nil {
		return nil, err
	}
	out, err := os.OpenFile(l.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	defer out.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env, cmd.Dir = out, out, l.env, l.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(l.argv[0]), err)
	}
	c := &child{Proc: Proc{PID: cmd.Process.Pid}, done: make(chan struct{})}
	// A child of ours stays a zombie until Wait below, so its start time can be read even if it has ended already.
	c.Start, err = startTime(c.PID)
	go func() {
		_ = cmd.Wait() // the exit status is of no use here; the log tells why
		close(c.done)
	}()
	if err != nil {
		return nil, errors.Join(err, cmd.Process.Kill())
	}
	return c, nil
}

// startTime reads field 22 of /proc/PID/stat; the fields are counted after the command, which may hold anything.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseStartTime(b)
}

func parseStartTime(stat []byte) (uint64, error) {
	rest := stat[bytes.LastIndexByte(stat, ')')+1:]
	fields := strings.Fields(string(rest))
	if len(fields) < 20 {
		return 0, fmt.Errorf("process stat %q: too few fields", stat)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// Alive says whether this very process still runs. A zombie has ended.
func (p Proc) Alive() bool {
	fd, err := p.open()
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return !waitPidfd(fd, 0)
}

// open returns a pidfd of this very process. The start time is compared after opening: from then on the descriptor
// cannot come to mean another process.
func (p Proc) open() (int, error) {
	if p.PID <= 0 {
		return -1, unix.ESRCH
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return -1, err
	}
	if t, err := startTime(p.PID); err != nil || t != p.Start {
		unix.Close(fd)
		return -1, unix.ESRCH
	}
	return fd, nil
}

// Signal sends sig to this very process; a process that is gone gets nothing and is no error.
func (p Proc) Signal(sig unix.Signal) error {
	fd, err := p.open()
	if err != nil {
		return ignoreGone(err)
	}
	defer unix.Close(fd)
	return ignoreGone(unix.PidfdSendSignal(fd, sig, nil, 0))
}

// stop sends sig, waits up to grace for the end, then kills. A process that is gone is no error; one that was frozen by
// SIGSTOP goes on, so that it can see the signal.
func (p Proc) stop(sig unix.Signal, grace time.Duration) error {
	fd, err := p.open()
	if err != nil {
		return ignoreGone(err)
	}
	defer unix.Close(fd)
	for _, s := range []unix.Signal{sig, unix.SIGCONT} {
		if err := ignoreGone(unix.PidfdSendSignal(fd, s, nil, 0)); err != nil {
			return fmt.Errorf("signal process %d: %w", p.PID, err)
		}
	}
	if waitPidfd(fd, grace) {
		return nil
	}
	if err := ignoreGone(unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)); err != nil {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	if !waitPidfd(fd, 10*time.Second) {
		return fmt.Errorf("process %d survives SIGKILL (see /proc/%d/stack)", p.PID, p.PID)
	}
	return nil
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// waitPidfd reports whether the process ended within the limit.
func waitPidfd(fd int, limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(max(0, time.Until(deadline)).Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && n > 0
	}
}

// tail returns the last lines of a log for an error message.
func tail(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "(" + err.Error() + ")"
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
