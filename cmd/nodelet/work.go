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

// work runs pods after the runtime's first answer, because their cgroups depend on the runtime's cgroup driver.
func (n *nodelet) work(ctx context.Context) error {
	if !n.monitor.AwaitAnswer(ctx) {
		return nil
	}
	driver, err := n.monitor.CgroupDriver(ctx, n.cfg.Cgroups.Driver)
	if err != nil {
		return nil // ctx has ended
	}
	if err := n.cgroups.Use(driver); err != nil {
		return err
	}
	n.facts.UseSystemd(driver == cgroups.DriverSystemd)
	if err := n.resources.allocatable.Setup(); err != nil {
		return err
	}
	var enforcing sync.WaitGroup
	enforcing.Go(func() { n.resources.allocatable.Run(ctx) })
	enforcing.Go(func() { n.evictor.Run(ctx) })
	defer enforcing.Wait()
	n.supervisor.Run(ctx)
	return nil
}

// running returns the static pods that an earlier agent, nodelet or the kubelet, has left running. It waits for the
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
		n.log.Warn("cannot list the running static pods", "err", err, "retryIn", monitor.RetryInterval)
		if !backoff.Sleep(ctx, monitor.RetryInterval) {
			break
		}
	}
	return nil
}

// podCIDR passes the node's pod CIDR to the runtime, which may generate its network configuration from it.
func (n *nodelet) podCIDR(cidr string) {
	if n.api == nil {
		cidr = cmp.Or(cidr, n.cfg.Kubelet.PodCIDR)
	}
	n.monitor.SetPodCIDR(cidr)
}

// shareRoot makes the root directory a shared mount, so that mounts of CSI drivers and of pods with mountPropagation
// reach the host and the containers.
func (n *nodelet) shareRoot() {
	if err := podfs.ShareMounts(n.cfg.Paths.Root); err != nil {
		n.log.Warn("root directory is not a shared mount; mountPropagation (needed by CSI drivers) will not work", "err", err)
	}
}
