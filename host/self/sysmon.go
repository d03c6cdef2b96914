package self

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// restSlack is how much later than it asks the kernel may wake sysmon while the agent is at rest.
const restSlack = 4 * time.Millisecond

// Sysmon is the monitor thread of the Go runtime. While a goroutine runs it sleeps for only 20 µs at a time, to notice
// early that a goroutine stays in a system call or has run for 10 ms. In an agent at rest, three of four wake-ups are
// these. So it has a longer timer slack then, see PR_SET_TIMERSLACK in prctl(2). That of the other threads, which run
// goroutines, and that of the programs that they start, stays.
type Sysmon struct {
	file string
	// work is the slack of before, in nanoseconds. It is empty if the slack cannot be changed.
	work string

	// resting reports that the slack is long; mu guards changes.
	resting atomic.Bool
	mu      sync.Mutex
}

// NewSysmon finds the thread. If its slack cannot be changed, the Sysmon does nothing.
func NewSysmon(log *slog.Logger) *Sysmon {
	s := &Sysmon{}
	if err := s.find(); err != nil {
		log.Info("cannot change the timer slack of sysmon, the agent wakes up more often at rest", "err", err)
	}
	return s
}

func (s *Sysmon) find() error {
	tid, err := sysmonThread()
	if err != nil {
		return fmt.Errorf("find sysmon: %w", err)
	}
	s.file = slackFile(tid)
	slack, err := os.ReadFile(s.file)
	if err != nil {
		return err
	}
	work := strings.TrimSpace(string(slack))
	if err := os.WriteFile(s.file, []byte(work), 0); err != nil { // needs CAP_SYS_NICE
		return err
	}
	s.work = work
	return nil
}

// Rest lets sysmon sleep longer until the next call of Work.
func (s *Sysmon) Rest() { s.set(true, strconv.FormatInt(restSlack.Nanoseconds(), 10)) }

// Work gives sysmon back the slack that it had. It is cheap.
func (s *Sysmon) Work() {
	if s.resting.Load() {
		s.set(false, s.work)
	}
}

func (s *Sysmon) set(rest bool, slack string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.work == "" || s.resting.Load() == rest {
		return
	}
	if os.WriteFile(s.file, []byte(slack), 0) == nil {
		s.resting.Store(rest)
	}
}

// slackFile is the file with the timer slack of a thread, in nanoseconds. It is not in the directory of the thread.
func slackFile(tid int) string { return fmt.Sprintf("/proc/%d/timerslack_ns", tid) }

// sysmonThread returns the ID of sysmon's thread. The runtime starts it before any other, so it has the next ID after
// the first thread. IDs begin again at a small number when they are used up: then another thread may have it, and gets
// the slack, which is harmless.
func sysmonThread() (tid int, err error) {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0, err
	}
	first := os.Getpid()
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err == nil && id > first && (tid == 0 || id < tid) {
			tid = id
		}
	}
	if tid == 0 {
		return 0, fmt.Errorf("no thread after %d", first)
	}
	return tid, nil
}
