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

// Proc identifies a process. The kernel reuses PIDs, but a PID with its start time is unique until the next boot. The
// state file has the boot ID, too.
type Proc struct {
	PID int `json:"pid"`
	// Start is the start time in clock ticks since boot: field 22 of /proc/PID/stat.
	Start uint64 `json:"start"`
}

// child is a process that this process has started and must reap.
type child struct {
	Proc
	done chan struct{} // closed when the process has exited and is reaped
}

// launch describes a process for start.
type launch struct {
	netns string // name below /run/netns; "" means the caller's namespace
	mntns string // file of a mount namespace; "" means the caller's namespace; ignored without netns
	log   string // file to which standard output and error are appended
	env   []string
	dir   string
	argv  []string
}

// start runs a process in a session of its own, so that it outlives the caller.
//
// It enters the namespace with nsenter, not with "ip netns exec", which also unshares the mount namespace. Then a
// runtime would not see the mounts of its agent.
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
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env, cmd.Dir = l.env, l.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(l.argv[0]), err)
	}
	c := &child{Proc: Proc{PID: cmd.Process.Pid}, done: make(chan struct{})}
	// The child stays a zombie until Wait below, so its start time can be read even if it has exited already.
	c.Start, err = startTime(c.PID)
	go func() {
		_ = cmd.Wait() // the log shows the cause better than the exit status
		close(c.done)
	}()
	if err != nil {
		return nil, errors.Join(err, cmd.Process.Kill())
	}
	return c, nil
}

// startTime reads field 22 of /proc/PID/stat. It counts fields after the command, which may contain any character.
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

// Alive reports whether exactly this process still runs. A zombie does not run.
func (p Proc) Alive() bool {
	fd, err := p.open()
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return !waitPidfd(fd, 0)
}

// open returns a pidfd of exactly this process. It compares the start time after opening, because from then on the
// descriptor always refers to the same process.
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

// Signal sends sig to exactly this process. It is no error if the process is gone.
func (p Proc) Signal(sig unix.Signal) error {
	fd, err := p.open()
	if err != nil {
		return ignoreGone(err)
	}
	defer unix.Close(fd)
	return ignoreGone(unix.PidfdSendSignal(fd, sig, nil, 0))
}

// stop sends sig, waits up to grace until the process exits, then kills it. It is no error if the process is gone. It
// continues a process that was stopped with SIGSTOP, so that the process receives the signal.
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
		return fmt.Errorf("kill process %d: still running 10s after SIGKILL (see /proc/%d/stack)", p.PID, p.PID)
	}
	return nil
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// waitPidfd reports whether the process exits within the limit.
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
