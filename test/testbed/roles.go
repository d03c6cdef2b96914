package testbed

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Roles are the names of the testbed's processes in the state file and of their logs. Those of node i have the prefix
// "ni.", for example "n0.".
const (
	roleEtcd       = "etcd"
	roleAPIServer  = "kube-apiserver"
	roleController = "kube-controller-manager"
	roleScheduler  = "kube-scheduler"
	roleContainerd = "containerd"
	roleCRIO       = "crio"
	roleAgent      = "agent"
	roleProxy      = "kube-proxy"
	roleDNS        = "coredns"
)

// launch starts the process of a role and writes its PID to the state file.
func (tb *Testbed) launch(role string, l launch) error {
	if p, err := tb.proc(role); err != nil {
		return err
	} else if p.Alive() {
		return fmt.Errorf("start %s: already running as process %d", role, p.PID)
	}
	l.log = tb.log(role)
	c, err := start(l)
	if err != nil {
		return err
	}
	tb.mu.Lock()
	tb.children[role] = c
	tb.mu.Unlock()
	return tb.updateState(func(s *state) { s.Procs[role] = c.Proc })
}

// proc returns the process that was last started for a role, or the zero Proc, which is never alive.
func (tb *Testbed) proc(role string) (Proc, error) {
	s, err := readState(tb.stateFile())
	if err != nil {
		return Proc{}, err
	}
	return s.Procs[role], nil
}

// PIDs returns the processes of a testbed that run, by role: "etcd", "kube-apiserver", "n0.agent", and so on.
func PIDs(tb *Testbed) (map[string]int, error) {
	s, err := readState(tb.stateFile())
	if err != nil {
		return nil, err
	}
	pids := map[string]int{}
	for role, p := range s.Procs {
		if p.Alive() {
			pids[role] = p.PID
		}
	}
	return pids, nil
}

// stopRole stops the process of a role, if it runs, and removes it from the state file.
func (tb *Testbed) stopRole(role string, sig unix.Signal, grace time.Duration) error {
	p, err := tb.proc(role)
	if err != nil {
		return err
	}
	if err := p.stop(sig, grace); err != nil {
		return fmt.Errorf("stop %s: %w", role, err)
	}
	return tb.updateState(func(s *state) { delete(s.Procs, role) })
}

// startLimit is how long a process may take until it serves, and a node until it is Ready. An idle machine needs a
// few seconds.
const startLimit = 5 * time.Minute

// await calls probe until it succeeds. If the process exits or the limit is over, the error contains the end of the
// log.
func (tb *Testbed) await(
	ctx context.Context,
	role string,
	limit time.Duration,
	probe func(context.Context) error,
) error {
	tb.mu.Lock()
	c := tb.children[role]
	tb.mu.Unlock()
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-c.done:
			return fmt.Errorf("%s has exited during its start:\n%s", role, tail(tb.log(role), 20))
		case <-ctx.Done():
			if caller.Err() != nil {
				return fmt.Errorf("wait for %s: %w", role, caller.Err())
			}
			return fmt.Errorf("%s is not ready after %s: %w\n%s", role, limit, err, tail(tb.log(role), 20))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Env returns the environment for work with the testbed: that of the caller, with KUBECONFIG and with the testbed's
// own kubectl, ctr and crictl first in PATH.
func (tb *Testbed) Env() []string {
	return append(os.Environ(), "KUBECONFIG="+tb.Kubeconfig, "PATH="+tb.Path())
}

// Path returns a PATH with the testbed's programs first.
func (tb *Testbed) Path() string {
	dirs := []string{tb.bins.kubernetes, tb.bins.containerd, tb.bins.crio, tb.bins.cri, tb.bins.runc, os.Getenv("PATH")}
	dirs = slices.DeleteFunc(dirs, func(d string) bool { return d == "" }) // "" in PATH means the working directory
	return strings.Join(dirs, string(filepath.ListSeparator))
}

// Kubectl runs kubectl as the cluster's administrator and returns its standard output. The error contains its
// standard error.
func (tb *Testbed) Kubectl(ctx context.Context, args ...string) (string, error) {
	return run(
		ctx,
		filepath.Join(tb.bins.kubernetes, "kubectl"),
		append([]string{"--kubeconfig", tb.Kubeconfig}, args...)...)
}
