package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nodelet/nodelet/test/testbed"
)

// nsMachine is a machine made of namespaces: the disk of the virtual machine with a systemd of its own as PID 1, on
// this machine's kernel and cgroup hierarchies. It runs as fast as this machine does, but it shares its kernel: a
// reboot and a loss of power are those of the processes alone.
type nsMachine struct {
	parts   *parts
	name    string
	dir     string // of this run; goes with it
	payload string // a directory that the machine sees at /payload
	address string // of its own, for a machine without a cable; may be empty
	cmd     *exec.Cmd
	ended   chan struct{}
	init    int // the PID of its PID 1 here
}

//go:embed guest/ns-machine.sh
var nsScript string

func newNSMachine(p *parts, name, dir, payload string) (*nsMachine, error) {
	h := &nsMachine{parts: p, name: name, dir: filepath.Join(dir, name), payload: payload}
	for _, d := range []string{"lower", "upper", "work", "root", "containerd"} {
		if err := os.MkdirAll(filepath.Join(h.dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	return h, nil
}

func (h *nsMachine) console() string { return filepath.Join(h.dir, "console.log") }

// cgroup is the machine's own, in each hierarchy.
func (h *nsMachine) cgroup() string {
	return "/nodelet-" + filepath.Base(filepath.Dir(h.dir)) + "-" + h.name
}

// start boots the machine and waits until its systemd obeys.
func (h *nsMachine) start(limit time.Duration) error {
	cgroups, err := testbed.MakeCgroup(h.cgroup())
	if err != nil {
		return err
	}
	enter := "for c in " + strings.Join(cgroups, " ") + "; do echo $$ > $c/cgroup.procs; done; " +
		"exec unshare --kill-child --fork --pid --cgroup --mount --net --uts --ipc --propagation private bash -c \"$0\""
	h.cmd = exec.Command("bash", "-c", enter, nsScript)
	h.cmd.Env = append(os.Environ(), "DIR="+h.dir, "NAME="+h.name, "DISK="+h.parts.disk, "PAYLOAD="+h.payload,
		"KERNEL="+h.parts.dir+"/kernel")
	console, err := os.OpenFile(h.console(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer console.Close()
	h.cmd.Stdout, h.cmd.Stderr = console, console
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := h.cmd.Start(); err != nil {
		return err
	}
	h.ended = make(chan struct{})
	go func() {
		_ = h.cmd.Wait()
		close(h.ended)
	}()
	if err := h.awaitSystemd(limit); err != nil || h.address == "" {
		return err
	}
	_, err = h.sh(time.Minute,
		"ip link add d0 type bridge && ip addr add "+h.address+
			"/24 dev d0 && ip link set d0 up && ip route add default via 192.0.2.1 dev d0")
	return err
}

func (h *nsMachine) awaitSystemd(limit time.Duration) error {
	for end := time.Now().Add(limit); ; time.Sleep(200 * time.Millisecond) {
		pid := h.cmd.Process.Pid
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		name, _ := os.ReadFile("/proc/" + strings.TrimSpace(string(children)) + "/comm")
		if strings.TrimSpace(string(name)) == "systemd" {
			h.init, _ = strconv.Atoi(strings.TrimSpace(string(children)))
			if _, err := h.sh(limit, "systemctl is-active -q multi-user.target"); err == nil {
				return nil
			}
		}
		select {
		case <-h.ended:
			return fmt.Errorf(
				"machine %s ended at its start; a systemd that ends without a word has found no free inotify instance "+
					"(sysctl fs.inotify.max_user_instances):\n%s",
				h.name,
				tail(h.console(), 30),
			)
		default:
		}
		if time.Now().After(end) {
			return fmt.Errorf("machine %s has not booted after %s:\n%s", h.name, limit, tail(h.console(), 30))
		}
	}
}

// awaitBoot waits until the machine has gone down and come up again.
func (h *nsMachine) awaitBoot(limit time.Duration) error {
	select {
	case <-h.ended:
		return h.start(limit)
	case <-time.After(limit):
		return fmt.Errorf("machine %s has not gone down after %s", h.name, limit)
	}
}

func (h *nsMachine) command(ctx context.Context, text string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", "-t", strconv.Itoa(h.init), "-a", "--", "env", "-i", "HOME=/root",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "bash", "-c", text)
}

// sh runs a command in the machine and gives its output.
func (h *nsMachine) sh(limit time.Duration, text string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c := h.command(ctx, text)
	c.WaitDelay = time.Second
	out, err := c.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%q in machine %s: %w: %s", text, h.name, err, out)
	}
	return string(out), nil
}

// order sends a command without waiting for an answer.
func (h *nsMachine) order(text string) error { return h.command(context.Background(), text).Start() }

// cut ends all processes of the machine at once.
func (h *nsMachine) cut() {
	if h.cmd == nil || h.cmd.Process == nil {
		return
	}
	_ = h.cmd.Process.Kill() // its child, the machine's PID 1, dies with it, and takes everything along
	<-h.ended
	h.cmd = nil
	if err := testbed.RemoveCgroup(h.cgroup(), 10*time.Second); err != nil {
		fmt.Println("left behind:", err)
	}
}

// link joins two machines by a cable, with an address for each.
func link(ctx context.Context, a *nsMachine, addrA string, b *nsMachine, addrB string) error {
	if err := run(ctx, "", "ip", "link", "add", "wire0", "netns", strconv.Itoa(a.init), "type", "veth", "peer", "name",
		"wire0", "netns", strconv.Itoa(b.init)); err != nil {
		return err
	}
	for m, addr := range map[*nsMachine]string{a: addrA, b: addrB} {
		if _, err := m.sh(time.Minute, "ip addr add "+addr+"/24 dev wire0 && ip link set wire0 up && "+
			"ip route replace default via 192.0.2.1 dev wire0"); err != nil {
			return err
		}
	}
	return nil
}
