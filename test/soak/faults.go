package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/testbed"
)

// fault is one kind of trouble. inject makes it, lets it last, and may leave to soak.heal what heal mends.
type fault struct {
	name, about string
	inject      func(context.Context, *soak) error
}

var faults = []fault{
	{"none", "nothing happens: the churn alone", hold},
	{"agent-kills", "the agent is killed (SIGKILL) 10 to 30 times", agentKills},
	{"agent-stopped", "the agent is stopped (SIGSTOP) for a while", agentStopped},
	{"agent-restarts", "the agent ends by SIGTERM and is started again, three times", agentRestarts},
	{"agent-few-files", "the agent runs out of file descriptors", agentFewFiles},
	{"runtime-killed", "the container runtime is killed and started again", runtimeKilled},
	{"runtime-stopped", "the container runtime is stopped (SIGSTOP) for a while", runtimeStopped},
	{"runtime-fails", "a third of the CRI calls fail", withRuntime(runtimeFails)},
	{"runtime-loses", "the answers of a third of the CRI calls are lost", withRuntime(runtimeLoses)},
	{"runtime-hangs", "a third of the CRI calls hang", withRuntime(runtimeHangs)},
	{"runtime-late", "a third of the CRI calls take up to 5 s more", withRuntime(runtimeLate)},
	{"runtime-twice", "the runtime gets a third of the CRI calls twice", withRuntime(runtimeTwice)},
	{"runtime-silent", "the runtime's events are cut off", withRuntime(runtimeSilent)},
	{"api-killed", "the API server is killed and started again", apiKilled},
	{"api-stopped", "the API server is stopped (SIGSTOP) for a while", apiStopped},
	{"api-refuses", "connections to the API server are refused", withAPI(apiRefuse)},
	{"api-drops", "packets to and from the API server are dropped", withAPI(apiDrop)},
	{"api-one-way", "requests reach the API server, answers are dropped", withAPI(apiOneWay)},
	{"api-resets", "connections to the API server are reset within half a second", withAPI(apiReset)},
	{"api-slow", "requests to the API server take up to 3 s more", withAPI(apiSlow)},
	{"api-hangs", "the API server accepts requests and does not answer", withAPI(apiHang)},
	{"api-errors", "most requests get an HTTP error 500 to 504", withAPI(apiErrors)},
	{"api-429", "most requests get an HTTP error 429", withAPI(apiTooMany)},
	{"api-expired", "half of the watches end with 410 Gone", withAPI(apiExpired)},
	{"api-lags", "an API server without WatchList answers lists from an old cache", withAPI(apiLags)},
	{"disk-full", "the file system of the root directory is full", diskFull},
	{"inodes-full", "the file system of the root directory has no inode left", inodesFull},
	{"files-damaged", "one of the agent's files is emptied, cut, garbage or newer; three times", filesDamaged},
}

// hold lets a fault last, and kills the agent in the midst of it in half of the rounds.
func hold(ctx context.Context, s *soak) error {
	s.wait(ctx, s.between(2*time.Second, 12*time.Second))
	if s.rand.IntN(2) == 0 {
		return nil
	}
	if err := s.kill(ctx); err != nil {
		return err
	}
	s.wait(ctx, s.between(time.Second, 8*time.Second))
	return nil
}

func withAPI(m apiMode) func(context.Context, *soak) error {
	return func(ctx context.Context, s *soak) error {
		s.http.set(m)
		return hold(ctx, s)
	}
}

func withRuntime(m runtimeMode) func(context.Context, *soak) error {
	return func(ctx context.Context, s *soak) error {
		s.calls.set(m)
		return hold(ctx, s)
	}
}

// kill ends the agent with SIGKILL and starts it again.
func (s *soak) kill(ctx context.Context) error {
	if err := s.node.StopAgent(unix.SIGKILL); err != nil {
		return err
	}
	s.report.Kills++
	return s.node.StartAgent(ctx, testbed.Nodelet)
}

func agentKills(ctx context.Context, s *soak) error {
	for range 10 + s.rand.IntN(21) {
		if err := s.kill(ctx); err != nil || ctx.Err() != nil {
			return err
		}
		s.wait(ctx, time.Duration(s.rand.ExpFloat64()*float64(600*time.Millisecond)))
	}
	return nil
}

func agentRestarts(ctx context.Context, s *soak) error {
	for range 3 {
		if err := s.node.StopAgent(unix.SIGTERM); err != nil {
			return err
		}
		if err := s.node.StartAgent(ctx, testbed.Nodelet); err != nil {
			return err
		}
		s.wait(ctx, s.between(100*time.Millisecond, 4*time.Second))
	}
	return nil
}

// stopped keeps a process stopped for a while.
func (s *soak) stopped(ctx context.Context, pid int) error {
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return fmt.Errorf("stop process %d: %w", pid, err)
	}
	s.wait(ctx, s.between(time.Second, 15*time.Second))
	return unix.Kill(pid, unix.SIGCONT)
}

func agentStopped(ctx context.Context, s *soak) error   { return s.stopped(ctx, s.node.AgentPID()) }
func runtimeStopped(ctx context.Context, s *soak) error { return s.stopped(ctx, s.node.RuntimePID()) }
func apiStopped(ctx context.Context, s *soak) error     { return s.stopped(ctx, s.tb.APIServerPID()) }

// agentFewFiles leaves the agent a few file descriptors more than it has open.
func agentFewFiles(ctx context.Context, s *soak) error {
	pid := s.node.AgentPID()
	open, err := openFiles(pid)
	if err != nil {
		return err
	}
	var was unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		return err
	}
	few := unix.Rlimit{Cur: uint64(open + s.rand.IntN(4)), Max: was.Max}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		return err
	}
	s.wait(ctx, s.between(2*time.Second, 12*time.Second))
	if s.node.AgentPID() != pid {
		return errors.New("the agent has ended when it had no file descriptor left")
	}
	return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil)
}

func runtimeKilled(ctx context.Context, s *soak) error {
	if err := s.node.StopRuntime(unix.SIGKILL); err != nil {
		return err
	}
	s.report.Kills++
	s.wait(ctx, s.between(0, 8*time.Second))
	if err := s.node.StartRuntime(ctx); err != nil {
		return err
	}
	return hold(ctx, s)
}

func apiKilled(ctx context.Context, s *soak) error {
	if err := s.tb.StopAPIServer(); err != nil {
		return err
	}
	s.report.Kills++
	s.wait(ctx, s.between(0, 8*time.Second))
	if s.rand.IntN(2) == 0 {
		if err := s.kill(ctx); err != nil {
			return err
		}
	}
	if err := s.tb.StartAPIServer(ctx); err != nil {
		return err
	}
	return s.tb.RestartScheduler()
}

// diskFull fills the file system below the agent's root directory.
func diskFull(ctx context.Context, s *soak) error {
	file := filepath.Join(s.node.RootDir, "soak-filler")
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer os.Remove(file)
	defer f.Close()
	for page := make([]byte, 64<<10); err == nil; {
		_, err = f.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) {
		return err
	}
	return hold(ctx, s)
}

// inodesFull takes all inodes of the file system below the agent's root directory.
func inodesFull(ctx context.Context, s *soak) error {
	dir := filepath.Join(s.node.RootDir, "soak-filler.d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for i := 0; ; i++ {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
		if errors.Is(err, unix.ENOSPC) {
			return hold(ctx, s)
		}
		if err != nil {
			return err
		}
		f.Close()
	}
}
