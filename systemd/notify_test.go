package systemd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/nodelet/nodelet/test/waittest"
)

// listen opens systemd's side of the socket; next returns one message, or "" if none arrives in time.
func listen(t *testing.T, name string) (next func() string) {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	t.Setenv("NOTIFY_SOCKET", name)
	return func() string {
		buf := make([]byte, 1000)
		if err := c.SetReadDeadline(time.Now().Add(waittest.Limit)); err != nil {
			t.Fatal(err)
		}
		n, err := c.Read(buf)
		if err != nil {
			return ""
		}
		return string(buf[:n])
	}
}

func TestNotify(t *testing.T) {
	for kind, name := range map[string]string{
		"path":     filepath.Join(t.TempDir(), "notify"),
		"abstract": fmt.Sprintf("@nodelet-test-%d-%d", os.Getpid(), time.Now().UnixNano()),
	} {
		t.Run(kind, func(t *testing.T) {
			next := listen(t, name)
			if err := Notify(daemon.SdNotifyReady + "\n" + Status("two\nlines")); err != nil {
				t.Fatal(err)
			}
			if got := next(); got != "READY=1\nSTATUS=two lines" {
				t.Errorf("systemd has read: got %q, want READY and the status", got)
			}
		})
	}
}

// TestLine checks that the agent and what the node waits for do not replace each other in the status line.
func TestLine(t *testing.T) {
	next := listen(t, filepath.Join(t.TempDir(), "notify"))
	line := &Line{}
	line.SetWait("waiting for the certificate")
	done := make(chan struct{})
	close(done)
	log := slog.New(slog.DiscardHandler)
	s := Service{Runtime: "R", Work: "runs pods", Answered: done, Usable: done, Line: line, Log: log}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go s.Run(ctx)
	for _, want := range []string{
		"STATUS=waiting for the certificate",
		"STATUS=waiting for the container runtime at R; waiting for the certificate",
		"STATUS=waiting for the container runtime's network; waiting for the certificate",
		"STATUS=runs pods; waiting for the certificate",
		daemon.SdNotifyReady,
	} {
		if got := next(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	line.SetWait("")
	if got, want := next(), "STATUS=runs pods"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	cancel()
	if got := next(); got != daemon.SdNotifyStopping {
		t.Errorf("got %q, want the end", got)
	}
}

func TestNotifyWithoutSystemd(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Notify(daemon.SdNotifyReady); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"relative/path", filepath.Join(t.TempDir(), "missing")} {
		t.Setenv("NOTIFY_SOCKET", bad)
		if err := Notify(daemon.SdNotifyReady); err == nil || !strings.Contains(err.Error(), "notify systemd") {
			t.Errorf("%s: got %v, want an error", bad, err)
		}
	}
}

// TestWatchdogInterval checks that three keep-alives fit into the time that systemd waits for one, so that one failed
// health check does not end the agent.
func TestWatchdogInterval(t *testing.T) {
	self := strconv.Itoa(os.Getpid())
	for _, c := range []struct {
		usec, pid string
		want      time.Duration
		bad       bool
	}{
		{"", "", 0, false},
		{"30000000", "", 7500 * time.Millisecond, false},
		{"30000000", self, 7500 * time.Millisecond, false},
		{"30000000", "1", 0, false},
		{"-1", self, 0, true},
		{"0", self, 0, true},
		{"soon", self, 0, true},
	} {
		t.Setenv("WATCHDOG_USEC", c.usec)
		t.Setenv("WATCHDOG_PID", c.pid)
		if got, err := watchdogInterval(); got != c.want || (err != nil) != c.bad {
			t.Errorf("%q for %q: got %v, %v, want %v", c.usec, c.pid, got, err, c.want)
		}
	}
}

// TestWatch checks that watch sends keep-alives while the agent is healthy, and reports the error otherwise.
func TestWatch(t *testing.T) {
	next := listen(t, filepath.Join(t.TempDir(), "notify"))
	stuck := make(chan bool, 1)
	failures := make(chan error, 100)
	isStuck := false
	healthy := func() error {
		select {
		case isStuck = <-stuck:
		default:
		}
		if isStuck {
			return errors.New("stuck")
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		watch(ctx, 5*time.Millisecond, healthy, func(err error) { failures <- err })
	}()
	for range 3 {
		if got := next(); got != daemon.SdNotifyWatchdog {
			t.Fatalf("got notification %q, want %q", got, daemon.SdNotifyWatchdog)
		}
	}
	stuck <- true
	if err := <-failures; err.Error() != "stuck" {
		t.Error(err)
	}
	cancel()
	<-done
	watch(t.Context(), 0, nil, nil) // returns at once
}
