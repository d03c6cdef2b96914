package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/test/waittest"
)

// TestShims starts a unit with the stand-ins for systemd, and kills, restarts and stops it as the suite does.
func TestShims(t *testing.T) {
	dir := t.TempDir()
	path, units := filepath.Join(dir, "shims"), filepath.Join(dir, "units")
	log, cgroup := filepath.Join(dir, "log"), filepath.Join(dir, "cgroup")
	if err := errors.Join(writeShims(path), os.Mkdir(cgroup, 0o755)); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(filepath.Join(path, args[0]), args[1:]...)
		cmd.Env = append(os.Environ(), "PATH="+path+":"+os.Getenv("PATH"), unitsEnv+"="+units, cgroupsEnv+"="+cgroup)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	running := func() bool {
		return strings.Contains(run("sudo", "systemctl", "list-units", "*kubelet*", "--state=running"), "kubelet-1.service")
	}
	words := func() int {
		text, _ := os.ReadFile(log)
		return strings.Count(string(text), "a%b$c")
	}
	if got := run("systemd-run", "--version"); !strings.HasPrefix(got, "systemd 2") {
		t.Errorf("got version %q, want one of systemd", got)
	}
	run("systemd-run", "-p", "Delegate=true", "-p", "StandardError=append:"+log, "--unit=kubelet-1.service",
		"--slice=runtime.slice", "--remain-after-exit", "sh", "-c", `echo "$0" >&2; exec sleep 1000`, "a%%b$$c")
	defer run("systemctl", "stop", "*")
	waittest.Until(t, "the program has its argument", func() bool { return words() == 1 })
	procs, err := os.ReadFile(filepath.Join(cgroup, "cgroup.procs"))
	pid, pidErr := os.ReadFile(filepath.Join(units, "kubelet-1.service", "pid"))
	if err = errors.Join(err, pidErr); err != nil || string(procs) != string(pid) {
		t.Errorf("got process %q in the cgroup, want %q (%v)", procs, pid, err)
	}
	if !running() {
		t.Error("the unit after systemd-run: got it not running, want it running")
	}
	run("systemctl", "kill", "kubelet-1")
	waittest.Until(t, "it has ended", func() bool { return !running() })
	if all := run("systemctl", "list-units", "*kubelet*"); !strings.Contains(
		all,
		"kubelet-1.service loaded active exited",
	) {
		t.Errorf("got units %q, want the one that has ended", all)
	}
	run("systemctl", "reset-failed", "kubelet-1")
	run("systemctl", "restart", "kubelet-1")
	waittest.Until(t, "it runs again", func() bool { return running() && words() == 2 })
	run("systemctl", "stop", "kubelet-1.service")
	if running() {
		t.Error("the unit after stop: got it running, want it stopped")
	}
}
