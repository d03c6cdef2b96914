package cgroups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
)

const (
	killRound = time.Second // how long one round waits for processes to end before it looks for new ones
	killMost  = 256         // processes killed in one round: each costs a file descriptor
)

// killAll ends every process in the cgroups at dirs and below (on v1: the same cgroup in several controllers), and
// returns when none is left or ctx ends. Where there is a pids controller, it sets the limit to 0, so that the
// processes cannot fork.
func killAll(ctx context.Context, dirs []string) error {
	for {
		pids, err := processes(dirs)
		if err != nil || len(pids) == 0 {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w; processes still running: %s", ctx.Err(), describe(pids))
		}
		for _, dir := range dirs { // best effort: both only make it faster
			_ = cgroups.WriteFile(dir, "pids.max", "0")
			_ = cgroups.WriteFile(dir, "cgroup.kill", "1")
		}
		if err := killRoundOf(ctx, dirs, pids); err != nil {
			return err
		}
	}
}

// killRoundOf kills pids and waits until they have ended, at most killRound. A process is killed through a pidfd that
// was opened while the process was in the cgroup, so that a reused PID never kills an unrelated process.
func killRoundOf(ctx context.Context, dirs []string, pids map[int]bool) error {
	handles := make([]unix.PollFd, 0, len(pids))
	defer func() {
		for _, h := range handles {
			unix.Close(int(h.Fd))
		}
	}()
	opened := map[int]int{}
	for pid := range pids {
		if len(handles) == killMost {
			break
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open process %d: %w", pid, err)
		}
		opened[pid] = fd
		handles = append(handles, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	still, err := processes(dirs)
	if err != nil {
		return err
	}
	for pid, fd := range opened {
		if !still[pid] {
			continue
		}
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	awaitEnd(ctx, handles)
	return nil
}

// awaitEnd waits until all pidfds report that their process has ended, at most killRound or until ctx ends.
func awaitEnd(ctx context.Context, handles []unix.PollFd) {
	deadline := time.Now().Add(killRound)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	waiting := append([]unix.PollFd(nil), handles...)
	for len(waiting) > 0 && ctx.Err() == nil {
		left := time.Until(deadline)
		if left <= 0 {
			return
		}
		if _, err := unix.Poll(waiting, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		kept := waiting[:0]
		for _, h := range waiting {
			if h.Revents == 0 {
				kept = append(kept, h)
			}
		}
		waiting = kept
	}
}

// processes collects the PIDs in the cgroups at dirs and below. A cgroup that is removed meanwhile has none.
func processes(dirs []string) (map[int]bool, error) {
	pids := map[int]bool{}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				if errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				return err
			}
			if !d.IsDir() {
				return nil
			}
			return readProcs(path, pids)
		})
		if err != nil {
			return nil, fmt.Errorf("list processes: %w", err)
		}
	}
	return pids, nil
}

// readProcs adds the PIDs of one cgroup. A threaded cgroup (v2) does not list them: its parent cgroup does.
func readProcs(dir string, into map[int]bool) error {
	raw, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	if err != nil {
		return err
	}
	for field := range strings.FieldsSeq(string(raw)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return fmt.Errorf("read %s/cgroup.procs: %w", dir, err)
		}
		if pid > 0 { // 0: a process of another PID namespace, which cannot be killed
			into[pid] = true
		}
	}
	return nil
}

// describe names processes for an error: PID and command, at most five.
func describe(pids map[int]bool) string {
	var list []string
	for pid := range pids {
		if len(list) == 5 {
			list = append(list, fmt.Sprintf("and %d more", len(pids)-5))
			break
		}
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		list = append(list, fmt.Sprintf("%d (%s)", pid, strings.TrimSpace(string(comm))))
	}
	return strings.Join(list, ", ")
}
