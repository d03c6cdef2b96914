package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestUninstallGoesOn checks that an uninstallation whose daemon-reload fails can be repeated, and is not stopped in
// its middle by the end of its context.
func TestUninstallGoesOn(t *testing.T) {
	const failing = "daemon-reload) exit 1;;\n"
	m := newMachine(t, true, "ExecStart=/usr/bin/kubelet --v=2")
	if err := m.Install(t.Context(), false, nil); err != nil {
		t.Fatal(err)
	}
	m.breaks(failing)
	if err := m.Uninstall(t.Context()); err == nil {
		t.Error("daemon-reload fails: got no error, want one")
	}
	m.breaks("")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	m.states(kubeletUnit, fmt.Sprintf("active,MainPID=%d", os.Getpid()))
	if err := m.Uninstall(t.Context()); err == nil {
		t.Error("another program runs: got no error, want that nodelet is not installed")
	}
	m.Program = program
	m.forget()
	if err := m.Uninstall(t.Context()); err != nil {
		t.Errorf("again, nodelet still runs as the kubelet: got %v, want no error", err)
	}
	m.check(m.calls, "daemon-reload\nrestart --no-block kubelet.service\n")

	m.Program = "/usr/bin/nodelet"
	if err := m.Install(t.Context(), true, []string{"--config=/c"}); err != nil {
		t.Fatal(err)
	}
	m.breaks(failing)
	m.forget()
	if err := m.Uninstall(t.Context()); err == nil {
		t.Error("own unit, daemon-reload fails: got no error, want one")
	}
	m.check(m.calls, "start --no-block kubelet.service\n")
}

// TestUninstallWithoutKubelet checks that the removal of nodelet.service is an error on a machine with a kubelet that
// nothing starts, for a script that goes on to the next node. A machine without a kubelet has no other agent.
func TestUninstallWithoutKubelet(t *testing.T) {
	for load, want := range map[string]string{"not-found": "", "masked": "", "loaded": "kubelet.service was not started"} {
		m := newMachine(t, true, "")
		m.boot = "disabled"
		m.states(kubeletUnit, "inactive,LoadState="+load)
		if err := m.Install(t.Context(), true, []string{"--config=/c"}); err != nil {
			t.Fatal(err)
		}
		err := m.Uninstall(t.Context())
		if want == "" && err != nil || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("kubelet that is %s: got error %v, want %q", load, err, want)
		}
		m.check(m.ownUnitFile(), "")
	}
}

// TestUninstallOfThePackage checks that an operator whose kubelet is that of the package nodelet-kubelet, which the
// command did not install, reads what to do.
func TestUninstallOfThePackage(t *testing.T) {
	m := newMachine(t, true, "ExecStart=/usr/bin/kubelet --v=2")
	kubelet := filepath.Join(m.Root, "usr/bin/kubelet")
	if err := os.Symlink("nodelet", kubelet); err != nil {
		t.Fatal(err)
	}
	const advice = "install the package kubelet in its place"
	if err := m.Uninstall(t.Context()); err == nil || !strings.Contains(err.Error(), advice) {
		t.Errorf("got error %v, want %q in it", err, advice)
	}
	if err := errors.Join(os.Remove(kubelet), os.WriteFile(kubelet, nil, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := m.Uninstall(t.Context()); err == nil || strings.Contains(err.Error(), advice) {
		t.Errorf("another kubelet: got error %v, want one without this advice", err)
	}
}

// TestUninstallIsNotInterrupted checks that a restoration that has begun does not end with the context of the command.
func TestUninstallIsNotInterrupted(t *testing.T) {
	m := newMachine(t, true, "ExecStart=/usr/bin/kubelet --v=2")
	m.states(kubeletUnit, "active")
	for _, separate := range []bool{false, true} {
		var flags []string
		if separate {
			flags = []string{"--config=/c"}
		}
		if err := m.Install(t.Context(), separate, flags); err != nil {
			t.Fatal(err)
		}
		m.forget()
		ctx, cancel := context.WithCancel(t.Context())
		m.Out = writer(cancel) // at the first change
		if err := m.Uninstall(ctx); err != nil {
			t.Errorf("own unit %v: got %v, want no error", separate, err)
		}
		m.check(m.calls, "start --no-block kubelet.service\n")
	}
}
