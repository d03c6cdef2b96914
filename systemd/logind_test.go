package systemd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/nodelet/nodelet/test/programs"
)

// TestMicroseconds checks that a delay without a limit (InhibitDelayMaxSec=infinity) is longer than any other, so that
// AllowDelay does not lower it.
func TestMicroseconds(t *testing.T) {
	for n, want := range map[uint64]time.Duration{0: 0, 5e6: 5 * time.Second} {
		if got := microseconds(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
	if got := microseconds(math.MaxUint64); got < 100*365*24*time.Hour {
		t.Errorf("infinity: got %s, want more than any shutdown takes", got)
	}
}

// TestDelayFile checks that the limit of logind is in the file that the kubelet writes, so that either agent can raise
// it.
func TestDelayFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logind.conf.d")
	if err := writeDelay(dir, 1500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if want := filepath.Join(dir, "99-kubelet.conf"); err != nil || len(files) != 1 || files[0] != want {
		t.Fatalf("got files %q, %v, want %s", files, err, want)
	}
	text, err := os.ReadFile(files[0])
	if err != nil || !strings.HasSuffix(string(text), "[Login]\nInhibitDelayMaxSec=2\n") {
		t.Errorf("got %q, %v, want a delay of 2 s", text, err)
	}
}

// TestDelayReusesLock checks that an agent which starts again takes over the lock that systemd has kept for it. A
// second lock would delay a shutdown until logind's limit, because nobody releases the first one.
func TestDelayReusesLock(t *testing.T) {
	lock, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	kept()[lockName] = lock
	var l Logind
	if err := l.Delay(t.Context()); err != nil || l.lock != lock {
		t.Errorf("got the lock %v, %v, want the kept one", l.lock, err)
	}
	if err := errors.Join(l.Release(), lock.Close()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after the release: got %v, want the kept lock closed", err)
	}
}

// TestTakeStored checks that an agent that does not delay shutdowns lets go of the lock that systemd has kept for an
// earlier one, which nothing else would do, and that another one keeps it.
func TestTakeStored(t *testing.T) {
	next := listen(t, filepath.Join(t.TempDir(), "notify"))
	lock, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	kept()[lockName] = lock
	if err := TakeStored(true); err != nil || kept()[lockName] != lock {
		t.Errorf("an agent that delays shutdowns: got %v, %v, want the lock", kept(), err)
	}
	if err := TakeStored(false); err != nil || len(kept()) != 0 || !errors.Is(lock.Close(), os.ErrClosed) {
		t.Errorf("one that does not: got %v, %v, want the lock closed", kept(), err)
	}
	if got := next(); got != "FDSTOREREMOVE=1\nFDNAME=shutdown-lock" {
		t.Errorf("got notification %q, want the removal of the lock", got)
	}
	if err := TakeStored(false); err != nil {
		t.Errorf("without a lock: %v", err)
	}
}

// busConfig is the configuration of a bus that allows everything, with the path of its socket.
const busConfig = `<busconfig><listen>unix:path=%s</listen><auth>EXTERNAL</auth><policy context="default">
<allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/>
</policy></busconfig>`

// startBus starts a system bus for this test.
func startBus(t *testing.T) {
	t.Helper()
	daemon := programs.Find(t, "dbus-daemon")
	dir, err := os.MkdirTemp("", "bus") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config := filepath.Join(dir, "bus.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, busConfig, filepath.Join(dir, "socket")), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), daemon, "--nofork", "--print-address", "--config-file="+config)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", strings.TrimSpace(address))
}

// client returns a connection to the bus.
func client(t *testing.T) *dbus.Conn {
	t.Helper()
	bus, err := dbus.ConnectSystemBus()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bus.Close() })
	return bus
}

// fakeLogind is one run of logind on the bus.
type fakeLogind struct {
	t    *testing.T
	bus  *dbus.Conn
	down atomic.Bool
	// holder is for whom the last lock is, a string.
	holder atomic.Value
}

func startLogind(t *testing.T) *fakeLogind {
	t.Helper()
	l := &fakeLogind{t: t, bus: client(t)}
	for _, name := range []string{"org.freedesktop.DBus.Properties", logindManager} {
		if err := l.bus.Export(l, logindPath, name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.bus.RequestName(logind, dbus.NameFlagDoNotQueue); err != nil {
		t.Fatal(err)
	}
	return l
}

// Get returns the property that says whether the machine goes down.
func (l *fakeLogind) Get(_, _ string) (dbus.Variant, *dbus.Error) {
	return dbus.MakeVariant(l.down.Load()), nil
}

// Inhibit gives a lock, and keeps for whom.
func (l *fakeLogind) Inhibit(_, who, _, _ string) (dbus.UnixFD, *dbus.Error) {
	l.holder.Store(who)
	f, err := os.Open(os.DevNull)
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	l.t.Cleanup(func() { _ = f.Close() })
	return dbus.UnixFD(f.Fd()), nil
}

// signal begins a shutdown or calls it off.
func (l *fakeLogind) signal(down bool) {
	l.down.Store(down)
	if err := l.bus.Emit(logindPath, logindManager+"."+prepare, down); err != nil {
		l.t.Error(err)
	}
}

// TestNext checks that logind decides whether the machine goes down: by its signals and by its restart, which forgets a
// shutdown without a signal, and not by the signals of others.
func TestNext(t *testing.T) {
	startBus(t)
	first := startLogind(t)
	l, err := OpenLogind(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	expect := func(after string, want bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if down, err := l.Next(ctx); err != nil || down != want {
			t.Errorf("after %s: got %t, %v, want %t", after, down, err, want)
		}
	}
	if err := client(t).Emit(logindPath, logindManager+"."+prepare, true); err != nil {
		t.Fatal(err)
	}
	expect("a signal of another program", false)
	first.signal(true)
	expect("the begin", true)
	first.signal(false)
	expect("the end", false)
	first.signal(true)
	expect("another begin", true)
	if err := first.bus.Close(); err != nil {
		t.Fatal(err)
	}
	second := startLogind(t)
	expect("a restart", false)
	second.signal(true)
	expect("the begin of the last", true)
}
