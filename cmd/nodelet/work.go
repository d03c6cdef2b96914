package main

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/cri/monitor"
	"github.com/nodelet/nodelet/host/cgroups"
	"github.com/nodelet/nodelet/kube/pods"
	"github.com/nodelet/nodelet/kube/watch"
	"github.com/nodelet/nodelet/volumes"
)

// work runs pods from when the container runtime has answered: what they live in depends on what it says.
func (n *nodelet) work(ctx context.Context) error {
	if !n.runtimeAnswered(ctx) {
		return nil
	}
	driver, err := n.cgroupDriver(ctx)
	if err != nil {
		return nil // the agent ends
	}
	if err := n.cgroups.Use(driver); err != nil {
		return err
	}
	n.facts.UseSystemd(driver == cgroups.DriverSystemd)
	if err := n.allocatable.Setup(); err != nil {
		return err
	}
	var enforcing sync.WaitGroup
	enforcing.Go(func() { n.allocatable.Run(ctx) })
	enforcing.Go(func() { n.evictor.Run(ctx) })
	defer enforcing.Wait()
	n.supervisor.Run(ctx)
	return nil
}

// runtimeAnswered waits for the runtime's first answer and tells whether there was one before ctx ended.
func (n *nodelet) runtimeAnswered(ctx context.Context) bool {
	select {
	case <-n.monitor.Answered():
		return true
	case <-ctx.Done():
		return false
	}
}

// cgroupDriver is the driver that the runtime uses, which has to be the agent's too (KEP-4033). A runtime that does not
// tell leaves it to the configuration. It fails only when ctx ends.
func (n *nodelet) cgroupDriver(ctx context.Context) (string, error) {
	own := n.cfg.Cgroups.Driver
	for {
		answer, err := n.runtime.RuntimeConfig(ctx)
		switch {
		case cri.IsUnimplemented(err):
			n.log.Info("the runtime does not tell its cgroup driver; taking that of the configuration", "driver", own)
			return own, nil
		case err != nil:
			if !watch.Sleep(ctx, monitor.RetryInterval) {
				return "", ctx.Err()
			}
			continue
		}
		driver := own
		if linux := answer.GetLinux(); linux != nil {
			driver = cri.CgroupDriver(linux)
		}
		if driver != own {
			n.log.Info("the runtime's cgroup driver counts, not that of the configuration", "driver", driver, "configured", own)
		}
		return driver, nil
	}
}

// running are the static pods that an earlier agent, nodelet or the kubelet, has left running. It waits for the
// runtime.
func (n *nodelet) running(ctx context.Context) map[types.NamespacedName]pods.Running {
	for n.runtimeAnswered(ctx) {
		all, err := n.runtime.ReadySandboxes(ctx)
		if err == nil {
			found := map[types.NamespacedName]pods.Running{}
			for _, s := range all {
				r, static := pods.RunningOf(s.Annotations)
				if pod, err := spec.ParsePodLabels(s.Labels); err == nil && static {
					found[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] = r
				}
			}
			return found
		}
		n.log.Warn("cannot see which static pods run already; trying again", "err", err, "every", monitor.RetryInterval)
		if !watch.Sleep(ctx, monitor.RetryInterval) {
			break
		}
	}
	return nil
}

// podCIDR hands the node's pod addresses on to the runtime, which may make a network configuration of them.
func (n *nodelet) podCIDR(cidr string) {
	if n.api == nil {
		cidr = cmp.Or(cidr, n.cfg.Kubelet.PodCIDR)
	}
	n.monitor.SetPodCIDR(cidr)
}

// shareRoot has mounts below the root directory, which CSI drivers and pods with mountPropagation make, reach both
// sides.
func (n *nodelet) shareRoot() {
	if err := volumes.ShareMounts(n.cfg.Paths.Root); err != nil {
		n.log.Warn("mounts below the root directory do not spread: pods with mountPropagation, as CSI drivers are, will not work", "err", err)
	}
}

// waitingForRuntime is an error, for people, as long as the runtime has not answered.
func (n *nodelet) waitingForRuntime() error {
	select {
	case <-n.monitor.Answered():
		return nil
	default:
		since := time.Since(n.monitor.Created()).Round(time.Second)
		return fmt.Errorf("the container runtime at %s has not answered in the %s since the start; until it does, no pod is looked at",
			n.cfg.Runtime.Endpoint, since)
	}
}
