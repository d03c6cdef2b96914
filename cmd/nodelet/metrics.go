package main

import (
	"context"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/agent/instruments"
	"github.com/nodelet/nodelet/host/cgroups"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/metrics/exporter"
	"github.com/nodelet/nodelet/metrics/usage"
)

// makeMetrics makes the instruments, which the packages that count are given when they are made.
func (n *nodelet) makeMetrics() error {
	n.metrics = exporter.New(n.cfg.Node.Name)
	n.metrics.AddSettings(n.cfg.Warnings)
	n.meter = instruments.New(n.metrics)
	return nil
}

// makeUsage makes what measures the node and its pods, and adds what is read on demand.
func (n *nodelet) makeUsage() error {
	c := usage.Config{
		Node:          n.cfg.Node.Name,
		Hierarchy:     usage.NewHierarchy(n.cgroups.Mounts()),
		Runtime:       n.runtime,
		Pods:          n.usagePods,
		RootDir:       n.cfg.Paths.Root,
		PodsDir:       filepath.Join(n.cfg.Paths.Root, "pods"),
		LogsDir:       n.cfg.Paths.PodLogs,
		Boot:          bootTime(),
		AgentCgroup:   usage.OwnCgroup(),
		RuntimeCgroup: n.cfg.Cgroups.Runtime,
		Log:           n.log,
	}
	if n.cfg.Cgroups.PerQOS {
		c.PodsCgroup, c.ClassCgroups = n.cgroups.PodsCgroup(), n.cgroups.ClassCgroups()
	}
	n.usage = usage.New(c)
	n.metrics.AddUsage(n.usage)
	instruments.AddPods(n.metrics, n.supervisor, n.cgroups.Version())
	n.metrics.AddClaims(n.dra.InUse)
	if n.identity != nil {
		n.metrics.AddClientCertificate(n.identity)
	}
	if n.serving != nil {
		n.metrics.AddServingCertificate(n.serving)
	}
	if n.objects != nil && n.cfg.Gate("PodCertificateRequest") {
		n.metrics.AddPodCertificates(n.objects)
	}
	n.mounts = append(n.mounts, n.metrics.Mounts()...)
	return nil
}

func bootTime() time.Time {
	var s unix.Sysinfo_t
	if unix.Sysinfo(&s) != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(s.Uptime) * time.Second).Truncate(time.Second)
}

// usagePods are the pods of which there is something to measure.
func (n *nodelet) usagePods(ctx context.Context) ([]usage.Pod, error) {
	all, err := n.supervisor.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]usage.Pod, 0, len(all))
	for _, s := range all {
		if !s.Sandbox || s.Rejected {
			continue
		}
		p := usage.Pod{Pod: s.Pod, Volumes: n.volumes.Usage(s.Pod, s.Mounted)}
		if s.Status.StartTime != nil {
			p.Started = s.Status.StartTime.Time
		}
		if n.cfg.Cgroups.PerQOS {
			p.Cgroup, _ = n.cgroups.PodParent(cgroups.Pod{UID: s.Pod.UID, QOS: podutil.QOS(s.Pod)})
		}
		out = append(out, p)
	}
	return out, nil
}
