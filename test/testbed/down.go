package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/host/mounts"
)

const (
	cniResults    = "/var/lib/cni/results" // results of libcni; containerd has no setting for the path
	containerLogs = "/var/log/containers"  // links to container logs; the kubelet has no setting for the path
)

// Down stops the testbed and removes all that it has created. See the function Down.
func (tb *Testbed) Down(ctx context.Context) error { return Down(ctx, tb.name, tb.opts.Progress) }

// Down stops and removes the testbed of that name: agents, pods, runtimes, control plane, mounts, cgroups, network,
// files. It needs only the name, works after crashes and failed starts, and may be repeated. If anything is left, the
// error lists it.
func Down(ctx context.Context, name string, progress io.Writer) error {
	n, err := newNames(name)
	if err != nil {
		return err
	}
	if progress == nil {
		progress = io.Discard
	}
	if os.Geteuid() != 0 {
		return errors.New("take testbed down: not root; run it as root")
	}
	return down(ctx, n, progress)
}

// down takes down the testbed of a name.
func down(ctx context.Context, n names, progress io.Writer) error {
	unlock, err := lockDir(ctx, n.dir())
	if err == nil {
		defer unlock()
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	s, err := readState(n.stateFile())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		fmt.Fprintf(progress, "%v: using only names derived from the testbed's name\n", err)
	}
	n.stopKnown(ctx, s, progress)
	err = n.killRest(s)
	n.reportOthers(s, progress)
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

// stopKnown stops the processes in the state file in order: agents before pods, pods before runtimes. It only prints
// errors, because killRest runs after it.
func (n names) stopKnown(ctx context.Context, s state, progress io.Writer) {
	note := func(err error) {
		if err != nil {
			fmt.Fprintf(progress, "%v (continuing)\n", err)
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
	for _, p := range s.Procs { // nothing else needs the remaining processes
		note(p.stop(unix.SIGKILL, 10*time.Second))
	}
}

// removePods stops and removes all sandboxes of a node with its runtime, so that CNI plugins clean up, too.
func (n names) removePods(ctx context.Context, i int, runtime string) error {
	client, closeConn, err := dialCRI("unix://" + n.runtimeSocket(i, runtime))
	if err != nil {
		return fmt.Errorf("remove pods: %w", err)
	}
	defer closeConn()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	list, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("remove pods: list sandboxes: %w", err)
	}
	var g errgroup.Group
	for _, s := range list.Items {
		g.Go(func() error {
			if _, err := client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.Id}); err != nil {
				return fmt.Errorf("stop the sandbox of pod %s: %w", s.Metadata.Name, err)
			}
			_, err := client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.Id})
			if err != nil {
				return fmt.Errorf("remove the sandbox of pod %s: %w", s.Metadata.Name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// killRest kills the remaining processes that provably belong to the testbed: those of a node whose runtime was
// killed, and those that are not in the state file.
func (n names) killRest(s state) error {
	for range 10 { // a shim may start something while it terminates
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
	return errors.New("kill the processes of the testbed: new ones start again and again")
}

// reportOthers prints the processes in a network namespace of the testbed that do not belong to it, for example a
// shell. They keep running, and keep the namespace without its name and without its links to the outside.
func (n names) reportOthers(s state, progress io.Writer) {
	others, _ := n.inside(s) // remains reports the error
	for _, p := range others {
		fmt.Fprintf(progress,
			"process %d (%s) is in a network namespace of testbed %s but not part of it, leaving it running\n",
			p.PID, p.exe, n.name)
	}
}

// unmount detaches all mounts below the testbed's directories, the newest first, and the loop devices that hold the
// devices of block volumes.
func (n names) unmount() error {
	all, err := n.mounts()
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range slices.Backward(all) {
		if mounts.SameDevice(path, path) { // it is a block device
			errs = append(errs, mounts.Release(path))
			continue
		}
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && err != unix.EINVAL && err != unix.ENOENT { // removed with another mount
			errs = append(errs, fmt.Errorf("unmount %s: %w", path, err))
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
		// Never delete through a mount.
		return errors.Join(err, errors.New("remove files: something is still mounted below the testbed's directories"))
	}
	outside, err := n.outsideFiles()
	errs := []error{err}
	for _, f := range outside {
		errs = append(errs, os.Remove(f))
	}
	return errors.Join(append(errs, os.RemoveAll(n.runDir()), os.RemoveAll(n.dir()))...)
}

// outsideFiles lists the files of this testbed that runtimes and agents create at fixed paths.
func (n names) outsideFiles() ([]string, error) {
	found, err := filepath.Glob(filepath.Join(cniResults, n.netns()+".*"))
	if err != nil {
		return nil, err
	}
	links, err := logLinks(n.dir())
	return append(found, links...), err
}
