package main

import (
	"context"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/agent/instruments"
	"github.com/nodelet/nodelet/metrics/usage"
)

// newUsage makes what measures the node and its pods.
func newUsage(p *process, x parts) *usage.Collector {
	c := usage.Config{
		Node:      p.cfg.Node.Name,
		Hierarchy: usage.NewHierarchy(x.machine.cgroups.Mounts()),
		Runtime:   x.runtime.client,
		Pods: func(ctx context.Context) ([]usage.Pod, error) {
			return instruments.UsagePods(ctx, x.links.supervisor, x.storage.volumes, x.machine.podCgroups(p.cfg.Cgroups.PerQOS))
		},
		RootDir:       p.cfg.Paths.Root,
		PodsDir:       filepath.Join(p.cfg.Paths.Root, "pods"),
		LogsDir:       p.cfg.Paths.PodLogs,
		Boot:          bootTime(),
		AgentCgroup:   usage.OwnCgroup(),
		RuntimeCgroup: p.cfg.Cgroups.Runtime,
		SystemCgroup:  p.cfg.Kubelet.SystemCgroups,
		Log:           p.log,
	}
	if p.cfg.Cgroups.PerQOS {
		c.PodsCgroup, c.ClassCgroups = x.machine.cgroups.PodsCgroup(), x.machine.cgroups.ClassCgroups()
	}
	u := usage.New(c)
	p.metrics.AddUsage(u)
	if p.cfg.Gate("CSIVolumeHealth") {
		p.start(u.WatchHealth)
	}
	return u
}

func bootTime() time.Time {
	var s unix.Sysinfo_t
	if unix.Sysinfo(&s) != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(s.Uptime) * time.Second).Truncate(time.Second)
}
