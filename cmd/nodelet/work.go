package main

import (
	"cmp"
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cri/monitor"
	"github.com/nodelet/nodelet/host/cgroups"
	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/kube/pods"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// work runs pods from when the container runtime has answered: what they live in depends on what it says.
func (n *nodelet) work(ctx context.Context) error {
	if !n.monitor.AwaitAnswer(ctx) {
		return nil
	}
	driver, err := n.monitor.CgroupDriver(ctx, n.cfg.Cgroups.Driver)
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

// running are the static pods that an earlier agent, nodelet or the kubelet, has left running. It waits for the
// runtime.
func (n *nodelet) running(ctx context.Context) map[types.NamespacedName]pods.Running {
	for n.monitor.AwaitAnswer(ctx) {
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
		if !backoff.Sleep(ctx, monitor.RetryInterval) {
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
	if err := podfs.ShareMounts(n.cfg.Paths.Root); err != nil {
		n.log.Warn("mounts below the root directory do not spread: pods with mountPropagation, as CSI drivers are, will not work", "err", err)
	}
}
