package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const (
	cniResults    = "/var/lib/cni/results" // where libcni keeps results; containerd cannot move it
	containerLogs = "/var/log/containers"  // where agents link container logs; the kubelet cannot move it
)

// Down ends the testbed and removes whatever it made. See the function Down.
func (tb *Testbed) Down(ctx context.Context) error { return Down(ctx, tb.name, tb.opts.Progress) }

// Down ends the testbed of that name: agents, pods, runtimes, control plane, mounts, cgroups, network, files. It needs
// nothing but the name; it works after crashes and half-finished starts, and may be repeated. It returns an error that
// names what is left, if anything is.
func Down(ctx context.Context, name string, progress io.Writer) error {
	n, err := newNames(name)
	if err != nil {
		return err
	}
	if progress == nil {
		progress = io.Discard
	}
	if os.Geteuid() != 0 {
		return errors.New("take testbed down: it needs root")
	}
	unlock, err := lockDir(n.dir())
	if err == nil {
		defer unlock()
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	s, err := readState(n.stateFile())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		fmt.Fprintf(progress, "%v: going by names alone\n", err)
	}
	n.stopKnown(ctx, s, progress)
	err = n.killRest(s)
	n.tellStrangers(s, progress)
	err = errors.Join(
		err,
		n.unmount(),
		n.removeNetwork(ctx),
		n.stopSlice(ctx),
		RemoveCgroup(n.cgroup(), 5*time.Second),
		RemoveCgroup(n.slice(), 5*time.Second),
		n.removeFiles(),
	)
	left, err2 := n.remains(s)
	if err = errors.Join(err, err2); err != nil {
		return fmt.Errorf("take testbed %q down: %w", n.name, err)
	}
	if len(left) > 0 {
		return fmt.Errorf("take testbed %q down: left behind:\n  %s", n.name, strings.Join(left, "\n  "))
	}
	fmt.Fprintf(progress, "testbed %s is down, nothing is left\n", n.name)
	return nil
}

// stopKnown ends what the state file names, in order: agents before pods, pods before runtimes. Its failures are only
// told: killRest comes after it.
func (n names) stopKnown(ctx context.Context, s state, progress io.Writer) {
	note := func(err error) {
		if err != nil {
			fmt.Fprintf(progress, "%v (going on)\n", err)
		}
	}
	for role, p := range s.Procs {
		if strings.HasSuffix(role, "."+roleAgent) || strings.HasSuffix(role, "."+roleProxy) {
			note(p.stop(unix.SIGTERM, 10*time.Second))
		}
	}
	var g errgroup.Group
	for i := range max(s.Options.Nodes, 1) {
		if runtime := s.Procs[fmt.Sprintf("n%d.%s", i, runtimeRole(s.Options.Runtime))]; runtime.Alive() {
			note(runtime.Signal(unix.SIGCONT)) // a test may have frozen it
			g.Go(func() error { note(n.removePods(ctx, i, s.Options.Runtime)); return nil })
		}
	}
	_ = g.Wait()
	for _, p := range s.Procs { // nothing they hold is needed any more
		note(p.stop(unix.SIGKILL, 10*time.Second))
	}
}

// removePods stops and removes all sandboxes of a node through its runtime, so that CNI plugins clean up as well.
func (n names) removePods(ctx context.Context, i int, runtime string) error {
	cache, err := OpenCache(io.Discard)
	if err != nil {
		return err
	}
	crictl, err := filepath.Glob(filepath.Join(cache.dir, "cri-tools-*", "crictl"))
	if err != nil || len(crictl) == 0 {
		return errors.New("remove pods: no crictl in the cache")
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	endpoint := "unix://" + n.runtimeSocket(i, runtime)
	_, err = run(ctx, crictl[0], "--runtime-endpoint", endpoint, "--timeout", "30s", "rmp", "--all", "--force")
	return err
}

// killRest kills processes which are the testbed's by proof and were not ended before: those of a node whose runtime
// died, and those started but not written down.
func (n names) killRest(s state) error {
	for range 10 { // a dying shim may be restarting something
		found, err := n.processes(s)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return nil
		}
		var errs []error
		for _, f := range found {
			errs = append(errs, f.stop(unix.SIGKILL, 0))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return errors.New("processes keep coming back")
}

// tellStrangers names processes which are in a namespace of the testbed but not the testbed's: a shell, say. They live
// on, and so does that namespace, without a name and without its links to the outside.
func (n names) tellStrangers(s state, progress io.Writer) {
	strangers, _ := n.inside(s) // its errors show up where they matter
	for _, p := range strangers {
		fmt.Fprintf(progress, "process %d (%s) is inside a network namespace of testbed %s and is left alone\n", p.PID, p.exe, n.name)
	}
}

// unmount detaches every mount below the testbed's directories, the newest first.
func (n names) unmount() error {
	mounts, err := n.mounts()
	if err != nil {
		return err
	}
	var errs []error
	for i := len(mounts) - 1; i >= 0; i-- {
		err := unix.Unmount(mounts[i], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && err != unix.EINVAL && err != unix.ENOENT { // went with another one
			errs = append(errs, fmt.Errorf("unmount %s: %w", mounts[i], err))
		}
	}
	return errors.Join(errs...)
}

func (n names) mounts() ([]string, error) {
	infos, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !below(m.Mountpoint, n.dir()) && !below(m.Mountpoint, n.runDir()), false
	})
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	var paths []string
	for _, m := range infos {
		paths = append(paths, m.Mountpoint)
	}
	return paths, nil
}

func below(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

func (n names) removeFiles() error {
	if left, err := n.mounts(); err != nil || len(left) > 0 {
		return errors.Join(err, errors.New("files are kept, because something is still mounted among them")) // never delete through a mount
	}
	outside, err := n.outsideFiles()
	errs := []error{err}
	for _, f := range outside {
		errs = append(errs, os.Remove(f))
	}
	return errors.Join(append(errs, os.RemoveAll(n.runDir()), os.RemoveAll(n.dir()))...)
}

// outsideFiles lists files which runtimes and agents leave at fixed places, of this testbed only.
func (n names) outsideFiles() ([]string, error) {
	found, err := filepath.Glob(filepath.Join(cniResults, n.netns()+".*"))
	if err != nil {
		return nil, err
	}
	links, err := logLinks(n.dir())
	return append(found, links...), err
}
