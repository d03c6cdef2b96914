package main

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/eviction"
	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/cri/images"
	"github.com/nodelet/nodelet/host/cgroups"
	"github.com/nodelet/nodelet/host/pressure"
	"github.com/nodelet/nodelet/kube/node"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/metrics/usage"
)

// makeCollector sets up what removes images that nobody uses.
func (n *nodelet) makeCollector() {
	i := n.cfg.Images
	n.collector = images.NewCollector(n.runtime, images.CollectorOptions{HighPercent: i.GCHighPercent, LowPercent: i.GCLowPercent,
		MinimumAge: i.MinimumAge, MaximumAge: i.MaximumAge, Event: n.nodeEvent, Removed: n.monitor.ImagesChanged, Log: n.log})
}

// makeEvictor sets up what ends pods when the node runs short.
func (n *nodelet) makeEvictor() {
	g := &gauge{n: n, trouble: map[string]string{}}
	e := n.cfg.Eviction
	n.evictor = agent.NewEvictor(n.supervisor, agent.EvictorConfig{
		Thresholds: n.thresholds(), Transition: e.TransitionPeriod, MaxGrace: e.MaxPodGrace,
		Levels: g.levels, Use: g.use, Reclaim: n.reclaim, WatchMemory: g.proc.WatchMemory,
		Tell: func(p eviction.Pressure) {
			n.node.SetPressure(node.Pressure{Memory: p.Memory, Disk: p.Disk, PID: p.PID})
		},
		Storage: n.limitedStorage(), Event: n.nodeEvent, Log: n.log,
	})
}

// reclaimPatience is how long a reclaim waits for containers and sandboxes to be removed.
const reclaimPatience = 2 * time.Minute

// reclaim removes what ended pods have left, and then images that no container uses.
func (n *nodelet) reclaim(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, reclaimPatience)
	defer cancel()
	n.supervisor.RemoveEnded(bounded)
	return n.collector.RemoveUnused(ctx)
}

// thresholds are those of the configuration. Where the memory of all pods is bounded, the hard one of memory holds for what is
// left of that as well.
func (n *nodelet) thresholds() (all []eviction.Threshold) {
	for _, t := range n.cfg.Eviction.Thresholds {
		one := eviction.Threshold{Signal: t.Signal, Value: eviction.Amount{Quantity: t.Quantity, Percentage: t.Percentage},
			Grace: t.GracePeriod, Reclaim: eviction.Amount(t.MinReclaim)}
		all = append(all, one)
		if t.Signal == eviction.MemoryAvailable && t.GracePeriod == 0 && slices.Contains(n.cfg.Cgroups.Enforce, "pods") {
			one.Signal = eviction.AllocatableAvailable
			all = append(all, one)
		}
	}
	return all
}

// tooShort refuses a pod that is new while the node runs short.
func (n *nodelet) tooShort(pod *corev1.Pod) *plan.Rejection {
	if why := eviction.Refuse(pod, podutil.QOS(pod), n.evictor.Pressure()); why != "" {
		return &plan.Rejection{Reason: eviction.Reason, Message: why}
	}
	return nil
}

// gauge reads levels and uses for the evictor, whose goroutine owns it.
type gauge struct {
	n    *nodelet
	proc pressure.Proc
	// ownImageFS: the runtime keeps images on a file system of their own.
	ownImageFS bool
	// trouble is what was last said of a signal that cannot be read.
	trouble map[string]string
}

// levels are those that the thresholds are about. What cannot be read is left out, and told once.
func (g *gauge) levels(ctx context.Context) map[string]eviction.Level {
	all := map[string]eviction.Level{}
	put := func(signal string, l pressure.Level, err error) {
		if err != nil {
			if g.trouble[signal] != err.Error() {
				g.trouble[signal] = err.Error()
				g.n.log.Warn("cannot tell whether the node runs short", "signal", signal, "err", err)
			}
		} else if l.Capacity > 0 {
			all[signal] = eviction.Level(l)
		}
	}
	memory, err := g.proc.Memory()
	put(eviction.MemoryAvailable, memory, err)
	if limit, used, ok := g.allocatable(); ok {
		put(eviction.AllocatableAvailable, pressure.Level{Available: limit - used, Capacity: limit}, nil)
	}
	processes, err := g.proc.Processes()
	put(eviction.PIDAvailable, processes, err)
	bytes, inodes, nodeDevice, err := pressure.Disk(g.n.cfg.Paths.Root)
	put(eviction.NodeFSAvailable, bytes, err)
	put(eviction.NodeFSInodes, inodes, err)
	if at, _ := g.n.imageFS.find(ctx, g.n.runtime); at != "" {
		bytes, inodes, device, err := pressure.Disk(at)
		g.ownImageFS = err == nil && device != nodeDevice
		for _, s := range []string{eviction.ImageFSAvailable, eviction.ContainerFSAvailable} {
			put(s, bytes, err)
		}
		for _, s := range []string{eviction.ImageFSInodes, eviction.ContainerFSInodes} {
			put(s, inodes, err)
		}
	}
	return all
}

// podAllocatable is how much memory all pods together may use, and use.
func (g *gauge) allocatable() (limit, used int64, ok bool) {
	dir, err := g.n.cgroups.Dir("memory")
	if err != nil {
		return 0, 0, false
	}
	c := pressure.Cgroup{Memory: dir, Pids: dir}
	limit, ok = c.Limit()
	if used, _, err = c.Use(); used == 0 && err != nil {
		return 0, 0, false
	}
	return limit, used, ok
}

// use measures what pods use of what a signal is about.
func (g *gauge) use(ctx context.Context, signal string, pods []*corev1.Pod) []eviction.Pod {
	all := make([]eviction.Pod, len(pods))
	local, known := g.local(ctx, signal, pods)
	for i, pod := range pods {
		u := eviction.Usage{Known: known}
		if eviction.OnDisk(signal) {
			u.Disk, u.Inodes = int64(local[i].Bytes), int64(local[i].Inodes)
		} else {
			u.Memory, u.Processes, u.Known = g.tasks(pod)
		}
		all[i] = eviction.Pod{Pod: pod, Usage: u}
	}
	return all
}

// local measures what pods take of the file system that a signal is about.
func (g *gauge) local(ctx context.Context, signal string, pods []*corev1.Pod) (all []usage.Amount, known bool) {
	all = make([]usage.Amount, len(pods))
	if !eviction.OnDisk(signal) {
		return all, false
	}
	onNodeFS := signal == eviction.NodeFSAvailable || signal == eviction.NodeFSInodes
	layers := func(*corev1.Pod) bool { return !onNodeFS || !g.ownImageFS }
	took, err := g.n.measured.stats.Local(ctx, pods, usePatience, layers)
	if err != nil {
		g.n.log.Warn("cannot tell what pods take of the disk", "signal", signal, "err", err)
		return all, false
	}
	for i := range took {
		if all[i] = took[i].Total(); g.ownImageFS && !onNodeFS {
			all[i] = took[i].Layer()
		}
	}
	return all, true
}

// usePatience is how long the eviction waits for what was never measured.
const usePatience = time.Minute

// tasks is what a pod's processes use.
func (g *gauge) tasks(pod *corev1.Pod) (memory, processes int64, known bool) {
	p := cgroups.Pod{UID: pod.UID, QOS: podutil.QOS(pod)}
	dir, err := g.n.cgroups.PodDir(p, "memory")
	pids, errPids := g.n.cgroups.PodDir(p, "pids")
	if err != nil || errPids != nil {
		return 0, 0, false
	}
	memory, processes, err = pressure.Cgroup{Memory: dir, Pids: pids}.Use()
	return memory, processes, err == nil
}
