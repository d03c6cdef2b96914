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

// fault is one kind of trouble. inject makes it, lets it last, and ends it; only processes may stay dead, which
// lane.revive starts.
type fault struct {
	name, about string
	part        part
	inject      func(context.Context, *lane) error
	// rare: only -only and profiles that name it inject it.
	rare bool
	// build: it needs an agent of package faultbuild.
	build bool
}

var faults = []fault{
	{name: "none", part: partNone, about: "nothing happens: the churn alone",
		inject: hold},
	{name: "agent-kills", part: partAgent, about: "the agent is killed (SIGKILL) 10 to 30 times",
		inject: agentKills},
	{name: "agent-killed-often", part: partAgent, about: "the agent is killed 200 times, with 30 ms to 1.2 s between",
		inject: agentKilledOften, rare: true},
	{name: "agent-stopped", part: partAgent, about: "the agent is stopped (SIGSTOP) for a while",
		inject: agentStopped},
	{name: "agent-restarts", part: partAgent, about: "the agent ends by SIGTERM and is started again, three times",
		inject: agentRestarts},
	{name: "agent-few-files", part: partAgent, about: "the agent runs out of file descriptors",
		inject: agentFewFiles},
	{name: "runtime-killed", part: partRuntime, about: "the container runtime is killed and started again",
		inject: runtimeKilled},
	{name: "runtime-stopped", part: partRuntime, about: "the container runtime is stopped (SIGSTOP) for a while",
		inject: runtimeStopped},
	{name: "runtime-fails", part: partCalls, about: "a third of the CRI calls fail",
		inject: withRuntime(runtimeFails)},
	{name: "runtime-loses", part: partCalls, about: "the answers of a third of the CRI calls are lost",
		inject: withRuntime(runtimeLoses)},
	{name: "runtime-hangs", part: partCalls, about: "a third of the CRI calls hang",
		inject: withRuntime(runtimeHangs)},
	{name: "runtime-late", part: partCalls, about: "a third of the CRI calls take up to 5 s more",
		inject: withRuntime(runtimeLate)},
	{name: "runtime-twice", part: partCalls, about: "the runtime gets a third of the CRI calls twice",
		inject: withRuntime(runtimeTwice)},
	{name: "runtime-silent", part: partCalls, about: "the runtime's events are cut off",
		inject: withRuntime(runtimeSilent)},
	{name: "api-killed", part: partControlPlane, about: "the API server is killed and started again",
		inject: apiKilled},
	{name: "api-stopped", part: partControlPlane, about: "the API server is stopped (SIGSTOP) for a while",
		inject: apiStopped},
	{name: "api-refuses", part: partNetwork, about: "connections to the API server are refused",
		inject: withAPI(apiRefuse)},
	{name: "api-drops", part: partNetwork, about: "packets to and from the API server are dropped",
		inject: withAPI(apiDrop)},
	{name: "api-one-way", part: partNetwork, about: "requests reach the API server, answers are dropped",
		inject: withAPI(apiOneWay)},
	{name: "api-resets", part: partNetwork, about: "connections to the API server are reset within half a second",
		inject: withAPI(apiReset)},
	{name: "api-slow", part: partNetwork, about: "requests to the API server take up to 3 s more",
		inject: withAPI(apiSlow)},
	{name: "api-hangs", part: partNetwork, about: "the API server accepts requests and does not answer",
		inject: withAPI(apiHang)},
	{name: "api-errors", part: partNetwork, about: "most requests get an HTTP error 500 to 504",
		inject: withAPI(apiErrors)},
	{name: "api-429", part: partNetwork, about: "most requests get an HTTP error 429",
		inject: withAPI(apiTooMany)},
	{name: "api-expired", part: partNetwork, about: "half of the watches end with 410 Gone",
		inject: withAPI(apiExpired)},
	{name: "api-lags", part: partNetwork, about: "an API server without WatchList answers lists from an old cache",
		inject: withAPI(apiLags)},
	{name: "disk-full", part: partFiles, about: "the file system of the root directory is full",
		inject: diskFull},
	{name: "inodes-full", part: partFiles, about: "the file system of the root directory has no inode left",
		inject: inodesFull},
	{name: "root-read-only", part: partFiles, about: "the file system of the root directory is read-only",
		inject: withFiles(unix.EROFS, 1000, true), build: true},
	{name: "root-eio", part: partFiles, about: "a fifth of the file operations below the root directory fail with EIO",
		inject: withFiles(unix.EIO, 200, false), build: true},
	{name: "inotify-full", part: partFiles, about: "no inotify instance and no watch can be created",
		inject: inotifyFull, build: true},
	{name: "clock-forward", part: partClock, about: "the clock is a day ahead for a while",
		inject: clockJumps(24 * time.Hour), build: true},
	{name: "clock-back", part: partClock, about: "the clock is a day behind for a while",
		inject: clockJumps(-24 * time.Hour), build: true},
	{name: "clock-drifts", part: partClock, about: "the clock gains ten seconds each second, and jumps back",
		inject: clockDrifts,
		build:  true},
	{name: "agent-little-memory", part: partAgent, about: "the agent gets 256 KiB to 8 MiB more memory than it has",
		inject: agentLittleMemory},
	{name: "csi-killed", part: partPlugins, about: "the CSI driver is killed and started again, twice",
		inject: withPlugin("csi")},
	{name: "device-killed", part: partPlugins, about: "the device plugin is killed and started again, twice",
		inject: withPlugin("device")},
	{name: "etcd-restored", part: partControlPlane, about: "etcd is restored from a copy that is some seconds old",
		inject: etcdRestored},
	{name: "etcd-restored-unseen", part: partControlPlane, about: "the same, and the agent is not restarted",
		inject: etcdRestoredUnseen, rare: true},
	{name: "files-damaged", part: partAgent,
		about:  "one of the agent's files is emptied, cut, garbage or newer; three times",
		inject: filesDamaged},
}

// hold lets a fault last, and kills the agent in the middle of it in half of the cases, unless another lane is at work
// on the agent.
func hold(ctx context.Context, l *lane) error {
	l.wait(ctx, l.between(2*time.Second, 12*time.Second))
	if l.rand.IntN(2) == 0 {
		return nil
	}
	if err := l.killIfFree(ctx); err != nil {
		return err
	}
	l.wait(ctx, l.between(time.Second, 8*time.Second))
	return nil
}

func withAPI(m apiMode) func(context.Context, *lane) error {
	return func(ctx context.Context, l *lane) error {
		l.http.set(m)
		defer l.http.set(apiNormal)
		return hold(ctx, l)
	}
}

func withRuntime(m runtimeMode) func(context.Context, *lane) error {
	return func(ctx context.Context, l *lane) error {
		l.calls.set(m)
		defer l.calls.set(runtimeNormal)
		return hold(ctx, l)
	}
}

// kill ends the agent with SIGKILL and starts it again.
func (l *lane) kill(ctx context.Context) error {
	if err := l.node.StopAgent(unix.SIGKILL); err != nil {
		return err
	}
	l.report.killed("agent")
	return l.node.StartAgent(ctx, testbed.Nodelet)
}

// killIfFree kills the agent if no lane is at work on it.
func (l *lane) killIfFree(ctx context.Context) error {
	if !l.gate.owners[partAgent].TryLock() {
		return nil
	}
	defer l.gate.owners[partAgent].Unlock()
	return l.kill(ctx)
}

func agentKills(ctx context.Context, l *lane) error {
	for range 10 + l.rand.IntN(21) {
		if err := l.kill(ctx); err != nil || ctx.Err() != nil {
			return err
		}
		l.wait(ctx, time.Duration(l.rand.ExpFloat64()*float64(600*time.Millisecond)))
	}
	return nil
}

// agentKilledOften kills the agent at many moments: short runs end while it starts, long ones while it works.
func agentKilledOften(ctx context.Context, l *lane) error {
	const least, most = 0.03, 1.2 // seconds
	for range 200 {
		if err := l.kill(ctx); err != nil || ctx.Err() != nil {
			return err
		}
		l.wait(ctx, time.Duration(least*math.Pow(most/least, l.rand.Float64())*float64(time.Second)))
	}
	return nil
}

func agentRestarts(ctx context.Context, l *lane) error {
	for range 3 {
		if err := l.node.StopAgent(unix.SIGTERM); err != nil {
			return err
		}
		if err := l.node.StartAgent(ctx, testbed.Nodelet); err != nil {
			return err
		}
		l.wait(ctx, l.between(100*time.Millisecond, 4*time.Second))
	}
	return nil
}

// stopped keeps a process stopped for a while.
func (l *lane) stopped(ctx context.Context, pid int) error {
	if pid == 0 { // which is the whole process group for kill(2)
		return errors.New("stop a process: it does not run")
	}
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return fmt.Errorf("stop process %d: %w", pid, err)
	}
	l.wait(ctx, l.between(time.Second, 15*time.Second))
	return unix.Kill(pid, unix.SIGCONT)
}

func agentStopped(ctx context.Context, l *lane) error   { return l.stopped(ctx, l.node.AgentPID()) }
func runtimeStopped(ctx context.Context, l *lane) error { return l.stopped(ctx, l.node.Runtime.PID()) }
func apiStopped(ctx context.Context, l *lane) error     { return l.stopped(ctx, l.tb.APIServerPID()) }

// agentFewFiles leaves the agent a few file descriptors more than it has open.
func agentFewFiles(ctx context.Context, l *lane) error {
	pid := l.node.AgentPID()
	open, err := openFiles(pid)
	if err != nil {
		return err
	}
	var was unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		return err
	}
	few := unix.Rlimit{Cur: uint64(open + l.rand.IntN(4)), Max: was.Max}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		return err
	}
	l.wait(ctx, l.between(2*time.Second, 12*time.Second))
	if l.node.AgentPID() != pid {
		return errors.New("the agent has ended when it had no file descriptor left")
	}
	return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil)
}

func runtimeKilled(ctx context.Context, l *lane) error {
	if err := l.node.Runtime.Stop(unix.SIGKILL); err != nil {
		return err
	}
	l.report.killed("runtime")
	l.wait(ctx, l.between(0, 8*time.Second))
	if err := l.node.Runtime.Start(ctx); err != nil {
		return err
	}
	return hold(ctx, l)
}

func apiKilled(ctx context.Context, l *lane) error {
	if err := l.tb.StopAPIServer(); err != nil {
		return err
	}
	l.report.killed("API server")
	l.wait(ctx, l.between(0, 8*time.Second))
	if l.rand.IntN(2) == 0 {
		if err := l.killIfFree(ctx); err != nil {
			return err
		}
	}
	if err := l.tb.StartAPIServer(ctx); err != nil {
		return err
	}
	return l.tb.RestartScheduler()
}

// diskFull fills the file system below the agent's root directory.
func diskFull(ctx context.Context, l *lane) error {
	file := filepath.Join(l.node.RootDir, "soak-filler")
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
	return hold(ctx, l)
}

// inodesFull takes all inodes of the file system below the agent's root directory.
func inodesFull(ctx context.Context, l *lane) error {
	dir := filepath.Join(l.node.RootDir, "soak-filler.d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for i := 0; ; i++ {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
		if errors.Is(err, unix.ENOSPC) {
			return hold(ctx, l)
		}
		if err != nil {
			return err
		}
		f.Close()
	}
}
