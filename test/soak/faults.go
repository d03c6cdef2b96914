package main

import (
	"context"
	"errors"
	"fmt"
	"math"
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
	// rare: only -only and profiles that name it inject it.
	rare bool
	// build: it needs an agent of package faultbuild.
	build bool
}

var faults = []fault{
	{name: "none", about: "nothing happens: the churn alone", inject: hold},
	{name: "agent-kills", about: "the agent is killed (SIGKILL) 10 to 30 times", inject: agentKills},
	{name: "agent-killed-often", about: "the agent is killed 200 times, with 30 ms to 1.2 s between",
		inject: agentKilledOften, rare: true},
	{name: "agent-stopped", about: "the agent is stopped (SIGSTOP) for a while", inject: agentStopped},
	{name: "agent-restarts", about: "the agent ends by SIGTERM and is started again, three times", inject: agentRestarts},
	{name: "agent-few-files", about: "the agent runs out of file descriptors", inject: agentFewFiles},
	{name: "runtime-killed", about: "the container runtime is killed and started again", inject: runtimeKilled},
	{name: "runtime-stopped", about: "the container runtime is stopped (SIGSTOP) for a while", inject: runtimeStopped},
	{name: "runtime-fails", about: "a third of the CRI calls fail", inject: withRuntime(runtimeFails)},
	{name: "runtime-loses", about: "the answers of a third of the CRI calls are lost", inject: withRuntime(runtimeLoses)},
	{name: "runtime-hangs", about: "a third of the CRI calls hang", inject: withRuntime(runtimeHangs)},
	{name: "runtime-late", about: "a third of the CRI calls take up to 5 s more", inject: withRuntime(runtimeLate)},
	{name: "runtime-twice", about: "the runtime gets a third of the CRI calls twice", inject: withRuntime(runtimeTwice)},
	{name: "runtime-silent", about: "the runtime's events are cut off", inject: withRuntime(runtimeSilent)},
	{name: "api-killed", about: "the API server is killed and started again", inject: apiKilled},
	{name: "api-stopped", about: "the API server is stopped (SIGSTOP) for a while", inject: apiStopped},
	{name: "api-refuses", about: "connections to the API server are refused", inject: withAPI(apiRefuse)},
	{name: "api-drops", about: "packets to and from the API server are dropped", inject: withAPI(apiDrop)},
	{name: "api-one-way", about: "requests reach the API server, answers are dropped", inject: withAPI(apiOneWay)},
	{name: "api-resets", about: "connections to the API server are reset within half a second",
		inject: withAPI(apiReset)},
	{name: "api-slow", about: "requests to the API server take up to 3 s more", inject: withAPI(apiSlow)},
	{name: "api-hangs", about: "the API server accepts requests and does not answer", inject: withAPI(apiHang)},
	{name: "api-errors", about: "most requests get an HTTP error 500 to 504", inject: withAPI(apiErrors)},
	{name: "api-429", about: "most requests get an HTTP error 429", inject: withAPI(apiTooMany)},
	{name: "api-expired", about: "half of the watches end with 410 Gone", inject: withAPI(apiExpired)},
	{name: "api-lags", about: "an API server without WatchList answers lists from an old cache",
		inject: withAPI(apiLags)},
	{name: "disk-full", about: "the file system of the root directory is full", inject: diskFull},
	{name: "inodes-full", about: "the file system of the root directory has no inode left", inject: inodesFull},
	{name: "root-read-only", about: "the file system of the root directory is read-only",
		inject: withFiles(unix.EROFS, 1000, true), build: true},
	{name: "root-eio", about: "a fifth of the file operations below the root directory fail with EIO",
		inject: withFiles(unix.EIO, 200, false), build: true},
	{name: "inotify-full", about: "no inotify instance and no watch can be created", inject: inotifyFull, build: true},
	{name: "clock-forward", about: "the clock is a day ahead for a while",
		inject: clockJumps(24 * time.Hour), build: true},
	{name: "clock-back", about: "the clock is a day behind for a while",
		inject: clockJumps(-24 * time.Hour), build: true},
	{name: "clock-drifts", about: "the clock gains ten seconds each second, and jumps back", inject: clockDrifts,
		build: true},
	{name: "agent-little-memory", about: "the agent gets 256 KiB to 8 MiB more memory than it has",
		inject: agentLittleMemory},
	{name: "csi-killed", about: "the CSI driver is killed and started again, twice", inject: withPlugin("csi")},
	{name: "device-killed", about: "the device plugin is killed and started again, twice", inject: withPlugin("device")},
	{name: "etcd-restored", about: "etcd is restored from a copy that is some seconds old", inject: etcdRestored},
	{name: "files-damaged", about: "one of the agent's files is emptied, cut, garbage or newer; three times",
		inject: filesDamaged},
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
	s.report.killed("agent")
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

// agentKilledOften kills the agent at moments of all kinds: short lives end while it starts, long ones amid work.
func agentKilledOften(ctx context.Context, s *soak) error {
	const least, most = 0.03, 1.2 // seconds
	for range 200 {
		if err := s.kill(ctx); err != nil || ctx.Err() != nil {
			return err
		}
		s.wait(ctx, time.Duration(least*math.Pow(most/least, s.rand.Float64())*float64(time.Second)))
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
	s.report.killed("runtime")
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
	s.report.killed("API server")
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
