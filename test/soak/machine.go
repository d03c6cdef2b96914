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

// clockJumps lets the clock be wrong by d for a while.
func clockJumps(d time.Duration) func(context.Context, *lane) error {
	return func(ctx context.Context, l *lane) error {
		l.page.SetClock(d)
		defer l.page.SetClock(0)
		return hold(ctx, l)
	}
}

// clockDrifts lets the clock gain ten seconds each second, and jump back at the end.
func clockDrifts(ctx context.Context, l *lane) error {
	const step = 50 * time.Millisecond
	drifting, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for n := time.Duration(1); drifting.Err() == nil; n++ {
			l.page.SetClock(10 * n * step)
			l.wait(drifting, step)
		}
	}()
	err := hold(ctx, l)
	stop()
	<-ended
	l.page.SetClock(0)
	return err
}

// withFiles makes a share of the file operations below the root directory fail.
func withFiles(errno unix.Errno, perMille int64, writesOnly bool) func(context.Context, *lane) error {
	return func(ctx context.Context, l *lane) error {
		before := l.page.Failed()
		l.page.FailFiles(errno, perMille, writesOnly)
		defer l.page.FailFiles(0, 0, false)
		err := hold(ctx, l)
		l.report.note("%d operations failed with %v", l.page.Failed()-before, errno)
		return err
	}
}

// inotifyFull lets no inotify instance and no watch be created.
func inotifyFull(ctx context.Context, l *lane) error {
	l.page.FailInotify(true)
	defer l.page.FailInotify(false)
	return hold(ctx, l)
}

// agentLittleMemory moves the agent to a cgroup in which it can get only a little more memory. The kernel may kill it.
func agentLittleMemory(ctx context.Context, l *lane) error {
	path := l.node.CgroupRoot + "-agent"
	dirs, err := testbed.MakeCgroup(path)
	if err != nil {
		return err
	}
	defer func() { _ = testbed.RemoveCgroup(path, 10*time.Second) }() // the testbed's end removes what is left
	limit := int64(256<<10) << l.rand.IntN(6)
	pid, bounded := l.node.AgentPID(), false
	if pid == 0 { // which is this program for the kernel
		return errors.New("limit the memory of the agent: it does not run")
	}
	for _, dir := range dirs {
		for _, file := range []string{"memory.limit_in_bytes", "memory.max"} {
			if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
				continue // another hierarchy or version of cgroups
			}
			if err := os.WriteFile(filepath.Join(dir, file), fmt.Append(nil, limit), 0o644); err != nil {
				return err
			}
			bounded = true
			if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, pid), 0o644); err != nil {
				return err
			}
		}
	}
	if !bounded {
		return errors.New("this machine has no memory controller")
	}
	l.wait(ctx, l.between(2*time.Second, 12*time.Second))
	if l.node.AgentPID() != pid {
		if l.gaveUp() == "" {
			l.report.killed("agent (out of memory)")
		}
		return nil
	}
	return l.kill(ctx) // the next one is where the first was
}

// etcdRestored brings the API server back to an earlier state: pods that were created meanwhile are unknown, pods that
// were deleted are there again, and resource versions are used a second time.
//
// The agent is killed at the end, because the documentation of Kubernetes recommends to restart kubelets after a
// restore: a watch that was cut off before it, and comes back when the API server has reached its version again, goes
// on at a version that exists twice, and misses what is between.
func etcdRestored(ctx context.Context, l *lane) error {
	if err := restoreEtcd(ctx, l); err != nil {
		return err
	}
	l.gate.owners[partAgent].Lock()
	err := l.kill(ctx)
	l.gate.owners[partAgent].Unlock()
	if err != nil {
		return err
	}
	return hold(ctx, l)
}

// etcdRestoredUnseen is etcdRestored without the restart: the agent reads the whole state after the outage.
func etcdRestoredUnseen(ctx context.Context, l *lane) error {
	if err := restoreEtcd(ctx, l); err != nil {
		return err
	}
	l.wait(ctx, l.between(2*time.Second, 12*time.Second))
	return nil
}

func restoreEtcd(ctx context.Context, l *lane) error {
	backup := filepath.Join(filepath.Dir(l.node.RootDir), "soak-etcd")
	if err := os.RemoveAll(backup); err != nil {
		return err
	}
	if err := testbed.CopyEtcd(l.tb, backup); err != nil {
		return err
	}
	l.wait(ctx, l.between(2*time.Second, 10*time.Second))
	return testbed.RestoreEtcd(ctx, l.tb, backup, func() {
		for _, process := range []string{"scheduler", "controller manager", "API server", "etcd"} {
			l.report.killed(process)
		}
		l.restores.Add(1)
		l.status.reset()
	})
}
