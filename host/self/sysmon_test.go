package self

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSysmon checks that sysmon alone gets the slack, while the agent is at rest: a program that the agent starts, as
// any of the other threads, has the one of before.
func TestSysmon(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: the slack of another thread is changed")
	}
	tid, err := sysmonThread()
	if err != nil {
		t.Fatal(err)
	}
	if want := sleeper(t); tid != want {
		t.Fatalf("got thread %d, want %d, which sleeps again and again while a goroutine runs", tid, want)
	}
	s := NewSysmon(slog.New(slog.DiscardHandler))
	t.Cleanup(s.Work)
	own := slackOf(t, "self")
	for range 2 {
		for _, step := range []struct {
			do   func()
			want string
		}{{s.Rest, "4000000"}, {s.Rest, "4000000"}, {s.Work, own}, {s.Work, own}} {
			step.do()
			if got := slackOf(t, strconv.Itoa(tid)); got != step.want {
				t.Errorf("slack of sysmon: got %s, want %s ns", got, step.want)
			}
		}
	}
	s.Rest()
	out, err := exec.Command("cat", "/proc/self/timerslack_ns").Output()
	if got := strings.TrimSpace(string(out)); got != own || err != nil {
		t.Errorf("slack of a program: got %s, error %v, want %s ns", got, err, own)
	}
	(&Sysmon{}).Rest() // one that cannot be changed
}

func slackOf(t *testing.T, process string) string {
	t.Helper()
	text, err := os.ReadFile("/proc/" + process + "/timerslack_ns")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// sleeper returns the thread that was first seen 20 times in nanosleep(2).
func sleeper(t *testing.T) int {
	t.Helper()
	seen := map[string]int{}
	for {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, thread := range threads {
			call, err := os.ReadFile("/proc/self/task/" + thread.Name() + "/syscall")
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
				t.Fatal(err)
			}
			if !strings.HasPrefix(string(call), fmt.Sprintf("%d ", unix.SYS_NANOSLEEP)) {
				continue
			}
			if seen[thread.Name()]++; seen[thread.Name()] == 20 {
				tid, err := strconv.Atoi(thread.Name())
				if err != nil {
					t.Fatal(err)
				}
				return tid
			}
		}
	}
}
