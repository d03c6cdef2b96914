package systemd

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// machine is a file system and a systemctl that records its calls. units are the units that exist.
type machine struct {
	*Installer
	t     *testing.T
	out   bytes.Buffer
	calls string
}

func newMachine(t *testing.T, systemd bool, kubelet string) *machine {
	t.Helper()
	m := &machine{t: t, calls: filepath.Join(t.TempDir(), "calls")}
	m.Installer = &Installer{Program: "/usr/bin/nodelet", Out: &m.out, root: t.TempDir()}
	for _, dir := range []string{"etc/systemd/system", "etc/default"} {
		if err := os.MkdirAll(filepath.Join(m.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if systemd {
		if err := os.MkdirAll(filepath.Join(m.root, "run/systemd/system"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	state := "not-found"
	if kubelet != "" {
		state = "loaded"
	}
	script := "#!/bin/sh\necho \"$*\" >> " + m.calls + "\ncase $1 in\nshow) echo LoadState=" + state +
		";;\ncat) cat <<'END'\n" + kubelet + "\nEND\n;;\nesac\n"
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "systemctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	return m
}

// check compares a file of the machine with what it must contain; an empty text means that the file must not exist.
func (m *machine) check(file, text string) {
	m.t.Helper()
	got, err := os.ReadFile(file)
	if text == "" && os.IsNotExist(err) {
		return
	}
	if err != nil || text == "" || !strings.Contains(string(got), text) {
		m.t.Errorf("%s: got %q, %v, want %q", file, got, err, text)
	}
}

func TestInstallReplacesKubelet(t *testing.T) {
	m := newMachine(t, true, "[Service]\nExecStart=/usr/bin/kubelet --v=2")
	if err := m.Install(false, []string{"--v=4"}); err == nil || !strings.Contains(err.Error(), "--own-unit") {
		t.Errorf("install with flags: got error %v, want advice to use --own-unit", err)
	}
	m.check(m.dropIn(), "")
	if err := m.Install(false, nil); err != nil {
		t.Fatal(err)
	}
	m.check(m.dropIn(), "ExecStart=/usr/bin/nodelet --v=2\n")
	m.check(m.ownUnitFile(), "")
	m.check(m.calls, "restart kubelet.service\n")
	if err := m.Install(false, nil); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("second install: got error %v, want one that says so", err)
	}
	if err := m.Uninstall(); err != nil {
		t.Fatal(err)
	}
	m.check(m.dropIn(), "")
}

func TestInstallOwnUnit(t *testing.T) {
	m := newMachine(t, true, "")
	if err := m.Install(false, []string{"--node-labels=a=b c"}); err == nil || !strings.Contains(err.Error(), "contains a space") {
		t.Errorf("flag with a space: got error %v, want one that it contains a space", err)
	}
	m.check(m.ownUnitFile(), "")
	if err := m.Install(false, []string{"--v=4", "--config=/c"}); err != nil {
		t.Fatal(err)
	}
	m.check(m.ownUnitFile(), "ExecStart=/usr/bin/nodelet $NODELET_ARGS\n")
	m.check(m.envFile(), "NODELET_ARGS=--v=4 --config=/c\n")
	m.check(m.calls, "enable nodelet.service\nrestart nodelet.service\n")
	if err := m.Uninstall(); err != nil {
		t.Fatal(err)
	}
	m.check(m.ownUnitFile(), "")
	if err := m.Uninstall(); err == nil {
		t.Error("second uninstall: got no error, want one")
	}
}

// TestInstallWithoutSystemd checks that nothing is written on a machine that systemd does not run.
func TestInstallWithoutSystemd(t *testing.T) {
	m := newMachine(t, false, "")
	if err := m.Install(true, nil); err == nil || !strings.Contains(err.Error(), "does not run systemd") {
		t.Errorf("got error %v, want one that names systemd", err)
	}
	m.check(m.ownUnitFile(), "")
	m.check(m.envFile(), "")
	m.check(m.calls, "")
}
