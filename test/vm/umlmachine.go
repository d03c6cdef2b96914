package main

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// umlMachine is a machine of User-Mode Linux: a kernel of its own that runs as a process of this machine. It has
// cgroup v2 with all controllers and systemd as PID 1, and computes as fast as this machine does. It runs in a
// network, PID and mount namespace that end with it; its memory is a deleted file in /dev/shm, its disk a
// copy-on-write layer in dir.
type umlMachine struct {
	*control
	kernel, disk string
	dir          string // of this run; removed with it
	payload      string // a directory that the machine sees at /payload; "": payload in dir
	name         string // of the host; "": as the disk has it
	images       string // a second disk; "": none
	memory       string // as the kernel's parameter mem takes it
	processors   string // how many, if the environment variable PROCESSORS is not set; "": two
	cmd          *exec.Cmd
	ended        chan struct{}
	used         time.Duration // processor time from its start to its power-off
}

//go:embed uml/machine.sh
var umlScript string

func (m *umlMachine) console() string { return filepath.Join(m.dir, "console.log") }

// hostView is where this machine's file system appears, read-only, if the directory exists.
func (m *umlMachine) hostView() string { return filepath.Join(m.dir, "host") }

// start boots the machine and waits until it accepts commands. A machine that was cut keeps its disk.
func (m *umlMachine) start(limit time.Duration) error {
	near, far, err := socketPair()
	if err != nil {
		return err
	}
	defer far.Close()
	console, err := os.OpenFile(m.console(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer console.Close()
	m.cmd = exec.Command("unshare", "--kill-child", "--fork", "--pid", "--mount", "--net", "--propagation", "private",
		"bash", "-c", umlScript)
	if m.name != "" {
		m.cmd.Args = append(m.cmd.Args, "machine", "systemd.hostname="+m.name)
	}
	m.cmd.Env = append(os.Environ(), "KERNEL="+m.kernel, "DISK="+m.disk, "COW="+filepath.Join(m.dir, "disk.cow"),
		"RUN="+m.dir, "MEMORY="+m.memory, "TMPDIR=/dev/shm", "IMAGES="+m.images, "PAYLOAD="+m.payload,
		"PROCESSORS="+cmp.Or(os.Getenv("PROCESSORS"), m.processors))
	m.cmd.Stdout, m.cmd.Stderr = console, console
	m.cmd.ExtraFiles = []*os.File{far}
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := m.cmd.Start(); err != nil {
		return err
	}
	cmd, ended := m.cmd, make(chan struct{})
	m.ended = ended
	go func() {
		_ = cmd.Wait()
		close(ended)
		_ = near.Close() // nothing answers on it any more
	}()
	next := newControl(near, m.console())
	if m.control != nil {
		next.boot = m.boot
	}
	m.control = next
	return m.awaitBoot(limit)
}

// socketPair returns both ends of a stream: one for this process, one to pass on.
func socketPair() (near net.Conn, far *os.File, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	mine := os.NewFile(uintptr(fds[0]), "control")
	defer mine.Close() // FileConn has a descriptor of its own
	far = os.NewFile(uintptr(fds[1]), "machine")
	near, err = net.FileConn(mine)
	if err != nil {
		far.Close()
	}
	return near, far, err
}

// cut ends all processes of the machine at once.
func (m *umlMachine) cut() {
	if m.cmd == nil || m.cmd.Process == nil {
		return
	}
	_ = m.cmd.Process.Kill() // unshare takes the machine along, which is PID 1 of its namespace
	<-m.ended
	m.cmd = nil
}

// powerOff has the machine's systemd stop everything, and waits for the end.
func (m *umlMachine) powerOff() error {
	if err := m.order("systemctl poweroff"); err != nil {
		return err
	}
	return m.awaitEnd(2 * time.Minute)
}

// awaitEnd waits until the machine has switched itself off.
func (m *umlMachine) awaitEnd(limit time.Duration) error {
	select {
	case <-m.ended:
		m.used = m.cmd.ProcessState.UserTime() + m.cmd.ProcessState.SystemTime()
		m.cmd = nil
		return nil
	case <-time.After(limit):
		return fmt.Errorf("the machine is not off after %s:\n%s", limit, tail(m.console(), 30))
	}
}

// inside returns the PID of the machine's first process.
func (m *umlMachine) inside() (int, error) {
	pid := m.cmd.Process.Pid
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0, err
	}
	inside, err := strconv.Atoi(strings.TrimSpace(string(children)))
	if err != nil {
		return 0, fmt.Errorf("find the machine's process: %w", err)
	}
	return inside, nil
}

// outside runs a command at the other end of the machine's network.
func (m *umlMachine) outside(limit time.Duration, command string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	inside, err := m.inside()
	if err != nil {
		return "", err
	}
	enter := []string{"-t", strconv.Itoa(inside), "--net", "bash", "-c", command}
	out, err := exec.CommandContext(ctx, "nsenter", enter...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%q beside the machine: %w: %s", command, err, out)
	}
	return string(out), nil
}
