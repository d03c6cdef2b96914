package systemd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// machine is a file system and a systemctl that records its calls.
type machine struct {
	*Installer
	t     *testing.T
	out   bytes.Buffer
	calls string
	// units has a file for each unit whose states a test sets.
	units string
	// boot is the UnitFileState that systemctl shows after a call of states.
	boot string
}

func newMachine(t *testing.T, systemd bool, kubelet string) *machine {
	t.Helper()
	m := &machine{t: t, calls: filepath.Join(t.TempDir(), "calls"), units: t.TempDir(), boot: "enabled"}
	m.Installer = &Installer{Program: "/usr/bin/nodelet", Out: &m.out, Root: t.TempDir()}
	for _, dir := range []string{"etc/systemd/system", "etc/default", "usr/bin"} {
		if err := os.MkdirAll(filepath.Join(m.Root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(m.Root, "usr/bin/nodelet"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if systemd {
		if err := os.MkdirAll(filepath.Join(m.Root, "run/systemd/system"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	state := "not-found"
	if kubelet != "" {
		state = "loaded"
	}
	script := "#!/bin/sh\necho \"$*\" >> " + m.calls + "\n[ ! -e " + m.units + "/breaks ] || . " + m.units + "/breaks\n" +
		"case $1 in\nshow) echo LoadState=" + state + "\n" +
		"if [ -e " + m.units + "/$2 ]; then cd " + m.units + "; head -n 1 $2 | tr , '\\n'\n" +
		"[ $(wc -l < $2) -eq 1 ] || sed -i 1d $2; fi;;\n" +
		"cat) cat <<'END'\n" + kubelet + "\nEND\n;;\nesac\nexit 0\n"
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "systemctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	return m
}

// breaks puts cases before those of the fake systemctl.
func (m *machine) breaks(cases string) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.units, "breaks"), []byte("case $1 in\n"+cases+"esac\n"), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// forget forgets the calls of systemctl.
func (m *machine) forget() {
	m.t.Helper()
	if err := os.Remove(m.calls); err != nil {
		m.t.Fatal(err)
	}
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
	err := m.Install(t.Context(), false, []string{"--v=4"})
	if err == nil || !strings.Contains(err.Error(), "--own-unit") {
		t.Errorf("install with flags: got error %v, want advice to use --own-unit", err)
	}
	m.check(m.dropIn(), "")
	if err := m.Install(t.Context(), false, nil); err != nil {
		t.Fatal(err)
	}
	m.check(m.dropIn(), "ExecStart=@/usr/bin/nodelet /usr/bin/kubelet --v=2\n")
	m.check(m.ownUnitFile(), "")
	m.check(m.calls, "restart --no-block kubelet.service\n")
	if text, err := os.ReadFile(m.dropIn()); err != nil || strings.Contains(string(text), "Slice=") {
		t.Errorf("got drop-in %q, %v, want that the agent stays in the slice that the unit names", text, err)
	}
	err = m.Install(t.Context(), false, nil)
	if err == nil || !strings.Contains(err.Error(), "already") || !strings.Contains(err.Error(), "to upgrade, ") {
		t.Errorf("second install: got error %v, want one that says so, and what to do", err)
	}
	if err := m.Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.check(m.dropIn(), "")
}

func TestInstallOwnUnit(t *testing.T) {
	m := newMachine(t, true, "")
	err := m.Install(t.Context(), false, []string{"--node-labels=a=b c"})
	if err == nil || !strings.Contains(err.Error(), "contains a space") {
		t.Errorf("flag with a space: got error %v, want one that it contains a space", err)
	}
	m.check(m.ownUnitFile(), "")
	if err := m.Install(t.Context(), false, []string{"--v=4", "--config=/c"}); err != nil {
		t.Fatal(err)
	}
	m.check(m.ownUnitFile(), "ExecStart=/usr/bin/nodelet $NODELET_ARGS\n")
	m.check(m.envFile(), "NODELET_ARGS=--v=4 --config=/c\n")
	m.check(m.calls, "enable nodelet.service\ndaemon-reload\nrestart --no-block nodelet.service\n")
	if err := m.Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.check(m.ownUnitFile(), "")
	if err := m.Uninstall(t.Context()); err == nil {
		t.Error("second uninstall: got no error, want one")
	}
	const mine = "# Mine\n[Unit]\n"
	if err := os.WriteFile(m.ownUnitFile(), []byte(mine), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := m.Uninstall(t.Context()); err == nil {
		t.Error("uninstall beside a unit of an administrator: got no error, want one")
	}
	if err := m.Install(t.Context(), true, []string{"--v=4"}); err == nil {
		t.Error("install beside a unit of an administrator: got no error, want one")
	}
	m.check(m.ownUnitFile(), mine)
}

// TestInstallWithoutSystemd checks that nothing is written on a machine that systemd does not run.
func TestInstallWithoutSystemd(t *testing.T) {
	m := newMachine(t, false, "")
	if err := m.Install(t.Context(), true, nil); err == nil || !strings.Contains(err.Error(), "does not run systemd") {
		t.Errorf("got error %v, want one that names systemd", err)
	}
	m.check(m.ownUnitFile(), "")
	m.check(m.envFile(), "")
	m.check(m.calls, "")
}

// states makes systemctl show these ActiveStates of a unit one after the other, and the last one from then on. A state
// can be followed by a comma and another property.
func (m *machine) states(unit string, all ...string) {
	m.t.Helper()
	var lines strings.Builder
	for _, state := range all {
		lines.WriteString("UnitFileState=" + m.boot + ",ActiveState=" + state + "\n")
	}
	if err := os.WriteFile(filepath.Join(m.units, unit), []byte(lines.String()), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// TestKubeletComesBack checks that an agent that fails, or is not ready in time, is replaced by the kubelet again.
func TestKubeletComesBack(t *testing.T) {
	for name, c := range map[string]struct {
		states []string
		wait   time.Duration
		ready  string
		want   string
	}{
		"fails": {states: []string{"active", "failed", "active"}, wait: time.Hour, want: "kubelet.service: failed"},
		"old one stops": {
			states: []string{"active", "active,Job=7", "failed", "active"},
			wait:   time.Hour,
			want:   "kubelet.service: failed",
		},
		"had failed":    {states: []string{"failed", "failed,Job=7", "active"}, wait: time.Hour},
		"takes long":    {states: []string{"active", "activating"}, wait: time.Nanosecond, want: "activating"},
		"is not ready":  {states: []string{"active"}, wait: time.Nanosecond, ready: "no network", want: "no network"},
		"becomes ready": {states: []string{"active"}, wait: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, true, "ExecStart=/usr/bin/kubelet --v=2")
			m.states(kubeletUnit, c.states...)
			m.Wait, m.Ready = c.wait, func(context.Context) string { return c.ready }
			err := m.Install(t.Context(), false, nil)
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				m.check(m.dropIn(), "ExecStart=@/usr/bin/nodelet /usr/bin/kubelet --v=2\n")
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one with %q", err, c.want)
			}
			m.check(m.dropIn(), "")
			calls, err := os.ReadFile(m.calls)
			if err != nil || strings.Count(string(calls), "restart --no-block kubelet.service") != 2 {
				t.Errorf("got calls %q, %v, want a second restart", calls, err)
			}
		})
	}
}

// TestDryRun checks that a dry run prints the steps and changes nothing.
func TestDryRun(t *testing.T) {
	m := newMachine(t, true, "ExecStart=/usr/bin/kubelet --v=2")
	m.DryRun = true
	if err := m.Install(t.Context(), false, nil); err != nil {
		t.Fatal(err)
	}
	want := "would run systemctl daemon-reload\nwould run systemctl restart --no-block kubelet.service\n"
	const command = "    ExecStart=@/usr/bin/nodelet /usr/bin/kubelet --v=2\n"
	if got := m.out.String(); !strings.HasSuffix(got, want) || !strings.Contains(got, command) {
		t.Errorf("got %q, want the file and %q", got, want)
	}
	m.check(m.dropIn(), "")
}

// TestLinkedFiles checks that files which an administrator keeps elsewhere, by links, are written there.
func TestLinkedFiles(t *testing.T) {
	m := newMachine(t, true, "")
	elsewhere := t.TempDir()
	unit, flags := filepath.Join(elsewhere, ownUnit), filepath.Join(elsewhere, "flags")
	limit := filepath.Join(elsewhere, "limit.conf")
	err := errors.Join(os.WriteFile(unit, []byte(ownComment+"# earlier\n"), 0o644),
		os.Symlink(unit, m.ownUnitFile()), os.Symlink(flags, m.envFile()),
		os.Symlink(limit, m.path("/etc/"+logindConfFile)),
		m.Install(t.Context(), true, []string{"--v=4"}), writeDelay(m.path("/etc"), time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{unit: "ExecStart=", flags: "NODELET_ARGS=--v=4\n", limit: "=60\n"} {
		m.check(path, text)
	}
	for _, path := range []string{m.ownUnitFile(), m.envFile(), m.path("/etc/" + logindConfFile)} {
		if _, err := os.Readlink(path); err != nil {
			t.Errorf("the link is gone: %v", err)
		}
	}
}

// TestInstallOnFullDisk checks that an installation that cannot write a file leaves the one that is there, and no new
// one.
func TestInstallOnFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount a file system")
	}
	m := newMachine(t, true, "[Service]\nExecStart=/usr/bin/kubelet --v=2")
	etc := m.path("/etc/systemd/system")
	if err := unix.Mount("tmpfs", etc, "tmpfs", 0, "size=8k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(etc, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	err := os.WriteFile(m.ownUnitFile(), []byte(ownComment+"# earlier\n"), 0o644)
	if err = errors.Join(err, os.WriteFile(filepath.Join(etc, "filler"), make([]byte, 4096), 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := m.Install(t.Context(), false, nil); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("install: got %v, want that there is no space", err)
	}
	m.check(m.dropIn(), "")
	if err := m.Install(t.Context(), true, []string{"--v=4"}); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("install --own-unit: got %v, want that there is no space", err)
	}
	m.check(m.ownUnitFile(), "# earlier")
}

// TestOldFlagsAreKept checks that the flags of an earlier installation are kept beside the new ones.
func TestOldFlagsAreKept(t *testing.T) {
	m := newMachine(t, true, "")
	if err := m.Install(t.Context(), true, nil); err == nil || !strings.Contains(err.Error(), "needs flags") {
		t.Errorf("no flags: got %v, want advice", err)
	}
	if err := os.WriteFile(m.envFile(), []byte("NODELET_ARGS=--v=1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := m.Install(t.Context(), true, []string{"--v=2"}); err != nil {
		t.Fatal(err)
	}
	m.check(m.envFile(), "NODELET_ARGS=--v=2\n")
	m.check(m.envFile()+".old", "NODELET_ARGS=--v=1\n")
}

// TestFurtherFlagsReplaceNone checks that a flag such as --accept-missing does not take the place of all others.
func TestFurtherFlagsReplaceNone(t *testing.T) {
	m := newMachine(t, true, "")
	const flags = "NODELET_ARGS=--config=/etc/nodelet/config.yaml --kubeconfig=/etc/kubernetes/kubelet.conf\n"
	if err := os.WriteFile(m.envFile(), []byte(flags), 0o644); err != nil {
		t.Fatal(err)
	}
	m.Flags = []string{"--accept-missing=qosReserved"}
	err := m.Install(t.Context(), true, nil)
	if err == nil || !strings.Contains(err.Error(), "add --accept-missing=qosReserved there") {
		t.Errorf("got error %v, want advice", err)
	}
	m.check(m.envFile(), flags)
	m.check(m.ownUnitFile(), "")
}

// TestOnlyAKubeletIsReplaced checks that a unit whose program is not the kubelet itself keeps it: the arguments of a
// wrapper are not those of the kubelet.
func TestOnlyAKubeletIsReplaced(t *testing.T) {
	for command, want := range map[string]string{
		"/usr/local/bin/start-kubelet.sh":      "starts /usr/local/bin/start-kubelet.sh, not a program called kubelet",
		"-/usr/bin/env kubelet --config=/c":    "starts /usr/bin/env, not a program called kubelet",
		"/opt/bin/kubelet --config=/c":         "through /opt/bin/kubelet, which is a script",
		"@/usr/bin/kubelet kubelet --v=2":      "under another name",
		"/usr/bin/kubelet $KUBELET_EXTRA_ARGS": "",
	} {
		m := newMachine(t, true, "[Service]\nExecStart="+command)
		script := filepath.Join(m.Root, "opt/bin/kubelet")
		if err := os.MkdirAll(filepath.Dir(script), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(script, []byte("#!/bin/sh\nexec /usr/bin/kubelet \"$@\"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		err := m.Install(t.Context(), false, nil)
		if want == "" && err == nil {
			continue
		}
		if err == nil || want == "" || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--own-unit") {
			t.Errorf("%s: got error %v, want %q and advice to use --own-unit", command, err, want)
		}
		m.check(m.dropIn(), "")
	}
}

// TestKubeletThatDoesNotStartAtBoot checks that a kubelet that ran, and that the machine does not start at boot, runs
// again if nodelet.service fails.
func TestKubeletThatDoesNotStartAtBoot(t *testing.T) {
	for before, want := range map[string]bool{
		"active": true, "reloading": true, "activating": true, "inactive": false, "failed": false,
	} {
		m := newMachine(t, true, "ExecStart=/usr/bin/kubelet --v=2")
		m.boot = "disabled"
		m.states(kubeletUnit, before, before, "active")
		m.states(ownUnit, "inactive", "failed")
		m.Wait = time.Hour
		if err := m.Install(t.Context(), true, []string{"--config=/c"}); err == nil {
			t.Errorf("%s kubelet: got no error, want that nodelet.service failed", before)
		}
		calls, err := os.ReadFile(m.calls)
		if got := strings.Contains(string(calls), "start --no-block kubelet.service\n"); err != nil || got != want {
			t.Errorf("%s kubelet: got that it was started: %v, %v, want %v; calls %q", before, got, err, want, calls)
		}
	}
}

// TestKubeletComesBackAfterOwnUnit checks that the kubelet, which nodelet.service stops when it starts, runs again if
// nodelet does not become ready, and after the unit was removed.
func TestKubeletComesBackAfterOwnUnit(t *testing.T) {
	m := newMachine(t, true, "ExecStart=/usr/bin/kubelet --v=2")
	m.states(kubeletUnit, "active")
	m.states(ownUnit, "inactive", "failed")
	m.Wait = time.Hour
	err := m.Install(t.Context(), true, []string{"--config=/c"})
	if err == nil || !strings.Contains(err.Error(), "nodelet.service: failed") {
		t.Errorf("got error %v, want that nodelet.service failed", err)
	}
	m.check(m.calls, "disable --now --no-block nodelet.service\n")
	m.check(m.calls, "start --no-block kubelet.service\n")
	m.forget()
	if err := m.Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.check(m.calls, "start --no-block kubelet.service\n")
	if out := m.out.String(); !strings.HasSuffix(out, "the kubelet manages the node again\n") {
		t.Errorf("got output %q, want that the kubelet is started", out)
	}
}

// TestBrokenKubeletAfterOwnUnit checks that a failed installation as a unit of its own also reports that the kubelet,
// which it has started again, does not work.
func TestBrokenKubeletAfterOwnUnit(t *testing.T) {
	m := newMachine(t, true, "ExecStart=/usr/bin/kubelet --v=2")
	m.states(kubeletUnit, "active")
	m.states(ownUnit, "inactive", "failed")
	m.Wait, m.KubeletReady = time.Nanosecond, func(context.Context) string { return "no answer" }
	err := m.Install(t.Context(), true, []string{"--config=/c"})
	if err == nil || !strings.Contains(err.Error(), "kubelet.service is not ready after 1ns: active, no answer") {
		t.Errorf("got error %v, want that the kubelet does not work", err)
	}
}

// TestOwnUnitComesBack checks that an installation over a nodelet.service that runs leaves that one running if the new
// agent does not become ready: with its unit, its flags, and its start at boot.
func TestOwnUnitComesBack(t *testing.T) {
	const unit, flags = ownComment + "[Unit]\n", "NODELET_ARGS=--config=/good\n"
	for boot, disabled := range map[string]bool{"enabled": false, "disabled": true} {
		m := newMachine(t, true, "")
		m.boot = boot
		m.states(ownUnit, "active", "failed")
		m.Wait = time.Hour
		for file, text := range map[string]string{m.ownUnitFile(): unit, m.envFile(): flags} {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Install(t.Context(), true, []string{"--config=/bad"}); err == nil {
			t.Errorf("%s: got no error, want that nodelet.service failed", boot)
		}
		m.check(m.envFile(), flags)
		if got, err := os.ReadFile(m.ownUnitFile()); string(got) != unit {
			t.Errorf("%s: got the unit %q, %v, want %q", boot, got, err, unit)
		}
		calls, err := os.ReadFile(m.calls)
		if !strings.HasSuffix(string(calls), "daemon-reload\nrestart --no-block nodelet.service\n") {
			t.Errorf("%s: got calls %q, %v, want a restart at the end", boot, calls, err)
		}
		if strings.Contains(string(calls), "disable nodelet.service") != disabled {
			t.Errorf("%s: got calls %q, want disable: %v", boot, calls, disabled)
		}
	}
}

// TestTakeOverBesideOwnUnit checks that a kubelet is not replaced beside a nodelet.service that runs, or that starts at
// boot and stops the kubelet's unit then.
func TestTakeOverBesideOwnUnit(t *testing.T) {
	for _, c := range []struct {
		state, boot string
		refused     bool
	}{
		{"active", "disabled", true},
		{"inactive", "enabled", true},
		{"inactive", "enabled-runtime", true},
		{"inactive", "disabled", false},
	} {
		m := newMachine(t, true, "ExecStart=/usr/bin/kubelet --v=2")
		m.states(kubeletUnit, "inactive")
		m.boot = c.boot
		m.states(ownUnit, c.state)
		err := m.Install(t.Context(), false, nil)
		if !c.refused && err == nil {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "use --own-unit") || !c.refused {
			t.Errorf("%v: got error %v, want advice to use --own-unit: %v", c, err, c.refused)
		}
		m.check(m.dropIn(), "")
	}
}

// writer is called for each write.
type writer func()

func (w writer) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}

// TestInterruptedInstallLeavesTheKubelet checks that the kubelet starts again if an installation as a unit of its own
// is interrupted, as by Ctrl-C.
func TestInterruptedInstallLeavesTheKubelet(t *testing.T) {
	m := newMachine(t, true, "ExecStart=/usr/bin/kubelet --v=2")
	m.states(kubeletUnit, "active")
	ctx, cancel := context.WithCancel(t.Context())
	m.Out = writer(cancel) // at the first change
	if err := m.Install(ctx, true, []string{"--config=/c"}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	m.check(m.calls, "disable --now --no-block nodelet.service\n")
	m.check(m.calls, "start --no-block kubelet.service\n")
}

// TestArguments checks that the arguments of the agent that Install would start are known before: they come from the
// flags, the file with the environment of nodelet.service, or the kubelet that runs.
func TestArguments(t *testing.T) {
	m := newMachine(t, true, "ExecStart=/usr/bin/kubelet --v=2")
	for env, want := range map[string][]string{
		"# old: NODELET_ARGS=--v=1\nOTHER=1\nNODELET_ARGS=--config=/c\n": {"--config=/c"},
		"NODELET_ARGS=\"--config=/c  --v=4\"\n":                          {"--config=/c", "--v=4"},
		"NODELET_ARGS=--config=/c \\\n --node-labels='a=b c' --x=\"\"\n": {"--config=/c", "--node-labels=a=b c", "--x="},
		"NODELET_ARGS=\n": {},
	} {
		if err := os.WriteFile(m.envFile(), []byte(env), 0o644); err != nil {
			t.Fatal(err)
		}
		got, dir, err := m.Arguments(t.Context(), true, nil)
		if err != nil || dir != "" || got == nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %q, %v, want %q", env, got, err, want)
		}
	}
	flags := []string{"--v=2"}
	if got, dir, err := m.Arguments(t.Context(), true, flags); err != nil || dir != "" || !slices.Equal(got, flags) {
		t.Errorf("flags: got %q in %q, %v, want them", got, dir, err)
	}
	if got, _, err := m.Arguments(t.Context(), false, nil); err != nil || got != nil {
		t.Errorf("no kubelet runs: got %q, %v, want nil", got, err)
	}
	m.states(kubeletUnit, fmt.Sprintf("active,MainPID=%d", os.Getpid()))
	want, here := os.Args[1:], t.TempDir()
	t.Chdir(here)
	if got, dir, err := m.Arguments(t.Context(), false, nil); err != nil || dir != here || !slices.Equal(got, want) {
		t.Errorf("kubelet: got %q in %q, %v, want %q in %s", got, dir, err, want, here)
	}
}
