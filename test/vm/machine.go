package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// machine is a virtual machine with a disk of its own. It is emulated, so times in it say little.
type machine struct {
	parts   *parts
	dir     string // of this run; goes with it
	payload string // a file system that the machine sees at /payload
	cmd     *exec.Cmd
	*control
}

// newMachine makes the disks. payload is a directory whose content the machine gets.
func newMachine(ctx context.Context, p *parts, dir, payload string) (*machine, error) {
	m := &machine{parts: p, dir: dir, payload: filepath.Join(dir, "payload.img")}
	err := run(ctx, "", "mke2fs", "-q", "-t", "ext4", "-d", payload, m.payload, "300M")
	if err == nil {
		err = run(ctx, "", "cp", "--sparse=always", "--reflink=auto", p.disk, m.disk())
	}
	return m, err
}

func (m *machine) disk() string { return filepath.Join(m.dir, "disk.img") }

// connect keeps the boot ID of before, so that the next boot is not taken for it.
func (m *machine) connect(c net.Conn) {
	next := newControl(c, m.console())
	if m.control != nil {
		next.boot = m.boot
	}
	m.control = next
}

func (m *machine) console() string { return filepath.Join(m.dir, "console.log") }

// start switches the machine on and waits until it obeys. The emulator dies with this process. It does not wait for
// the disk of this machine (cache=unsafe): what the guest has written is in a file, and what it has not is lost with
// the power all the same.
func (m *machine) start(limit time.Duration) error {
	socket := filepath.Join(m.dir, "control.sock")
	_ = os.Remove(socket)
	m.cmd = exec.Command("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2048",
		"-display", "none", "-nic", "none", "-kernel", m.parts.kernel, "-initrd", m.parts.initrd,
		"-append", "console=ttyS0 quiet mitigations=off systemd.show_status=false",
		"-drive", "file="+m.disk()+",if=virtio,format=raw,cache=unsafe", "-drive",
		"file="+m.payload+",if=virtio,format=raw,readonly=on",
		"-serial", "file:"+m.console(), "-chardev", "socket,id=control,path="+socket+",server=on,wait=off", "-serial",
		"chardev:control")
	m.cmd.Stderr = os.Stderr
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		return err
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		c, err := net.Dial("unix", socket)
		if err == nil {
			m.connect(c)
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("reach the machine's control port: %w", err)
		}
	}
	return m.awaitBoot(limit)
}

// cut takes the power away.
func (m *machine) cut() {
	if m.cmd == nil || m.cmd.Process == nil {
		return
	}
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
	if m.control != nil {
		m.control.close()
	}
	m.cmd = nil
}

func tail(path string, lines int) string {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	all := strings.Split(string(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
