package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodelet/nodelet/cni"
	"github.com/nodelet/nodelet/test/ownmounts"
	"github.com/nodelet/nodelet/test/testbed"
)

// ownNetwork is set in the environment of a test that runs in a network namespace of its own.
const ownNetwork = "NODELET_TEST_OWN_NETWORK"

// inOwnNetwork runs the test once more, in a network namespace of its own, and reports whether this is that run. The
// code under test removes bridges that no sandbox uses.
func inOwnNetwork(t *testing.T) bool {
	t.Helper()
	if os.Getenv(ownNetwork) != "" {
		return true
	}
	if out, err := exec.Command("unshare", "--net", "true").CombinedOutput(); err != nil {
		ownmounts.Need(t, "a network namespace", fmt.Errorf("%w: %s", err, out))
	}
	cmd := exec.Command("unshare", "--net", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), ownNetwork+"=1")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("in a network namespace of its own: got %v, want %s passed:\n%s", err, t.Name(), out)
	}
	return false
}

// TestStatusOfPlugins checks that the network has a problem while one of its plugins says that it cannot set up pods,
// and that the runtime is asked again only when that changes. Plugins of earlier versions than 1.1.0 are not asked.
func TestStatusOfPlugins(t *testing.T) {
	for version, asked := range map[string]bool{"1.0.0": false, "1.1.0": true} {
		t.Run(version, func(t *testing.T) {
			dir := t.TempDir()
			down, conf := filepath.Join(dir, "down"), filepath.Join(dir, "net.conflist")
			// Written by another process: a file that is open for writing in a process which forks cannot be run.
			cmd := exec.Command("sh", "-c", `cat >"$0" && chmod 755 "$0"`, filepath.Join(dir, "cloud"))
			cmd.Stdin = strings.NewReader("#!/bin/sh\n[ -e " + down + " ] || exit 0\n" +
				`echo '{"cniVersion":"1.1.0","code":50,"msg":"no subnet yet"}'; exit 1` + "\n")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("write a plugin: %v: %s", err, out)
			}
			text := `{"cniVersion":"` + version + `","name":"net","plugins":[{"type":"cloud"}]}`
			err := errors.Join(os.WriteFile(conf, []byte(text), 0o600), os.WriteFile(down, nil, 0o600))
			if err != nil {
				t.Fatal(err)
			}
			changes := 0
			m := &Manager{log: slog.New(slog.DiscardHandler), cluster: standalone{}, cfg: Config{
				Dir:         t.TempDir(),
				Conf:        conf,
				CallTimeout: time.Minute,
				CheckSoon:   func() { changes++ },
				Called:      func(cni.Call) {},
			}}
			a := newAgentMode(m, cni.Dirs{Conf: t.TempDir(), Bins: []string{dir}})
			changes = 0
			expect := func(when string, problem bool, want int) {
				t.Helper()
				a.askPlugins(t.Context())
				a.askPlugins(t.Context())
				if err := a.problem(true); (err != nil) != problem || problem && !strings.Contains(err.Error(), "no subnet yet") {
					t.Errorf("%s: got problem %v, want one: %t", when, err, problem)
				}
				if changes != want {
					t.Errorf("%s: the runtime was asked %d times, want %d", when, changes, want)
				}
			}
			if !asked {
				expect("an earlier version", false, 0)
				return
			}
			expect("down", true, 1)
			if err := os.Remove(down); err != nil {
				t.Fatal(err)
			}
			expect("up", false, 2)
		})
	}
}

// TestMasqueradeIsRetried checks that rules which cannot be made, because another program holds the lock of iptables or
// because iptables is installed later, are made soon after, and then rarely again.
func TestMasqueradeIsRetried(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	bin, calls := t.TempDir(), filepath.Join(t.TempDir(), "calls")
	tools := func(exit string) {
		for _, tool := range []string{"iptables", "iptables-restore"} {
			text := "#!/bin/sh\necho " + tool + " >>" + calls + "\nexit " + exit + "\n"
			if err := os.WriteFile(filepath.Join(bin, tool), []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	count := func() int {
		text, err := os.ReadFile(calls)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(calls, 0); err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(text), "iptables-restore")
	}
	t.Setenv("PATH", bin)
	synctest.Test(t, func(t *testing.T) {
		answered := make(chan struct{})
		close(answered)
		m := &Manager{log: slog.New(slog.DiscardHandler), cluster: standalone{}, cfg: Config{
			Dir:       t.TempDir(),
			CheckSoon: func() {},
			Runtime:   silentRuntime{},
			Answered:  answered,
		}}
		ctx, cancel := context.WithCancel(t.Context())
		a := newAgentMode(m, cni.Dirs{Conf: t.TempDir(), Bins: []string{t.TempDir()}})
		a.source.SetRanges([]netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")})
		<-a.clean
		done := make(chan struct{})
		tools("4")
		go func() { a.cleanUp(ctx); close(done) }()
		time.Sleep(5*time.Minute - time.Second)
		if n := count(); n != 5 {
			t.Errorf("got %d attempts in five minutes, want one each minute", n)
		}
		tools("0")
		time.Sleep(20*time.Minute + 2*time.Second)
		if n := count(); n != 3 {
			t.Errorf("got %d calls in the next 20 minutes, want one at once and then one each ten minutes", n)
		}
		cancel()
		<-done
	})
}

// TestGeneratedNetworkIsRemoved checks that a node which uses another network now keeps the bridge and the rules of the
// generated one as long as a sandbox is attached to it, and not longer. Other bridges it removes at once.
func TestGeneratedNetworkIsRemoved(t *testing.T) {
	testbed.NeedPrograms(t, map[string]string{"ip": "iproute2", "iptables": "iptables", "unshare": "util-linux"})
	if !inOwnNetwork(t) {
		return
	}
	for name, cleanUp := range map[string]func(*Manager, context.Context){
		"runtime":  func(m *Manager, ctx context.Context) { newRuntimeMode(m, cni.Dirs{Conf: t.TempDir()}).cleanUp(ctx) },
		"cni-conf": func(m *Manager, ctx context.Context) { newAgentMode(m, cni.Dirs{Conf: t.TempDir()}).cleanUp(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { removeGenerated(t, cleanUp) })
		})
	}
}

func removeGenerated(t *testing.T, cleanUp func(*Manager, context.Context)) {
	sh := func(command string) string {
		t.Helper()
		out, err := exec.Command("sh", "-ec", command).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
		return string(out)
	}
	sh(`iptables -P FORWARD DROP
		for i in 0 1; do
			ip link add nodelet$i type bridge; ip addr add 10.1.$i.1/24 dev nodelet$i; ip link set nodelet$i up
		done
		ip link add pod type veth; ip link set pod master nodelet0`)
	ranges := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}
	if err := errors.Join(cni.Masquerade(t.Context(), ranges, nil), cni.AllowForwarding(t.Context(), ranges)); err != nil {
		t.Fatal(err)
	}
	answered := make(chan struct{})
	close(answered)
	m := &Manager{log: slog.New(slog.DiscardHandler), cluster: standalone{}, cfg: Config{
		Dir:       t.TempDir(),
		Conf:      "/nonexistent",
		CheckSoon: func() {},
		Runtime:   silentRuntime{},
		Answered:  answered,
	}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { cleanUp(m, ctx); close(done) }()
	expect := func(when string, bridges string, rules int) {
		t.Helper()
		time.Sleep(2 * cleanupRetry)
		if got := sh("ip -o link show type bridge | cut -d: -f2 | tr -d '\n'"); got != bridges {
			t.Errorf("%s: got the bridges %q, want %q", when, got, bridges)
		}
		out := sh("iptables-save")
		if n := strings.Count(out, "-j NODELET-") + strings.Count(out, ":NODELET-"); n != rules {
			t.Errorf("%s: got %d chains and rules that lead to them, want %d, in\n%s", when, n, rules, out)
		}
	}
	expect("with a sandbox", " nodelet0", 4)
	sh("ip link del pod")
	expect("without a sandbox", "", 0)
	cancel()
	<-done
}
