package systemd

import (
	"log/slog"
	"os"
	"testing"
)

// startedAs makes this process look like one that was started by a name.
func startedAs(t *testing.T, program string) {
	t.Helper()
	before := os.Args[0]
	os.Args[0] = program
	t.Cleanup(func() { os.Args[0] = before })
}

// TestName checks that add-ons find the agent by the name of the kubelet where it was started by it: the process, as
// kube-bench and pgrep look for it, and the lock that delays a shutdown. TestJournalFields checks the journal.
func TestName(t *testing.T) {
	const file = "/proc/self/comm"
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(file, before, 0); err != nil {
			t.Error(err)
		}
	})
	startBus(t)
	logind := startLogind(t)
	for program, want := range map[string]string{
		"/usr/bin/kubelet": "kubelet", "kubelet": "kubelet", "/usr/bin/nodelet": "nodelet", "/opt/nodelet-2": "nodelet",
	} {
		startedAs(t, program)
		TakeName(slog.New(slog.DiscardHandler))
		if got, err := os.ReadFile(file); err != nil || string(got) != want+"\n" {
			t.Errorf("started as %s: got process %q, %v, want %s", program, got, err, want)
		}
		l, err := OpenLogind(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		err = l.Delay(t.Context())
		if got := logind.holder.Load(); err != nil || got != want {
			t.Errorf("started as %s: got a lock for %v, %v, want one for %s", program, got, err, want)
		}
		if err := l.Release(); err != nil {
			t.Error(err)
		}
		l.Close()
	}
}
