package main

import (
	"cmp"
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/admission"
	"github.com/nodelet/nodelet/agent/execute"
	"github.com/nodelet/nodelet/agent/instruments"
	"github.com/nodelet/nodelet/agent/nodefacts"
	"github.com/nodelet/nodelet/agent/placement"
	"github.com/nodelet/nodelet/agent/podprobes"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/cri/logs"
	"github.com/nodelet/nodelet/host/cgroups"
	"github.com/nodelet/nodelet/host/userns"
	"github.com/nodelet/nodelet/internal/trace"
	"github.com/nodelet/nodelet/probes"
)

// newSteps makes what runs the steps of plans.
func newSteps(p *process, x *parts, tree *logs.Tree) (*execute.Executor, error) {
	userNamespaces, err := userns.Open(p.cfg.IDsPerPod(), int(p.cfg.Kubelet.MaxPods), x.storage.files, p.log)
	if err != nil {
		return nil, err
	}
	return execute.New(execute.Backends{
		Runtime:         x.runtime.client,
		Images:          x.runtime.puller,
		Volumes:         x.storage.volumes,
		PodFiles:        x.storage.files,
		Logs:            tree,
		Cgroups:         x.machine.podCgroups,
		Devices:         x.plugins.devices,
		Placement:       x.placement,
		Claims:          x.plugins.dra,
		UserNamespaces:  userNamespaces,
		Objects:         func(pod *corev1.Pod) execute.Objects { return x.objects.of(pod) },
		Events:          x.api.recorder,
		Metrics:         p.instruments,
		Node:            x.machine.facts.Spec,
		FreshNode:       x.machine.facts.Fresh,
		HandlerFeatures: x.runtime.monitor.Features,
		NoImageSubPath:  x.runtime.monitor.NoImageSubPath,
		Working:         x.sysmon.Work,
	}), nil
}

// newSupervisor makes the supervisor, which runs the pods.
func newSupervisor(p *process, x *parts) error {
	tree, err := logs.NewTree(p.cfg.Kubelet.PodLogsDir, logs.LinksDir)
	if err != nil {
		return err
	}
	steps, err := newSteps(p, x, tree)
	if err != nil {
		return err
	}
	firstBackoff, longestBackoff := p.cfg.CrashLoop()
	x.supervisor = agent.NewSupervisor(agent.Config{
		Backends: agent.Backends{
			Runtime:       x.runtime.client,
			Steps:         steps,
			PodFiles:      x.storage.files,
			Logs:          tree,
			Volumes:       x.storage.volumes,
			Cgroups:       x.machine.podCgroups,
			Devices:       x.plugins.devices,
			Placement:     x.placement,
			AllocatedPods: placement.AllocatedPods(p.cfg.Paths.Root),
			Claims:        x.plugins.dra,
			Probes:        podprobes.New(newProber(p, x)),
			Objects:       func(pod *corev1.Pod) agent.Objects { return x.objects.of(pod) },
			Status:        x.api.status,
			Events:        x.api.recorder,
			Metrics:       p.instruments,
			Tracer:        newTracer(p),
		},
		Node:           x.machine.facts.Spec,
		NodeSeen:       x.machine.node.Seen(),
		RefreshNode:    x.machine.node.Refresh,
		Waiting:        x.runtime.monitor.Waiting,
		RuntimeName:    x.runtime.monitor.RuntimeName,
		DeviceHealth:   p.cfg.Gate("ResourceHealthStatus"),
		NetworkProblem: func(uid types.UID) string { return x.network.PodProblem(string(uid)) },
		Admit: func(pod *corev1.Pod, others []*corev1.Pod) admission.Decision {
			return admit(p, x, pod, others)
		},
		Rejection: func(pod *corev1.Pod) *podstate.Rejection {
			return cmp.Or(x.shutdown.Rejection(pod), x.evictor.Rejection(pod))
		},
		BegunEviction: func(pod *corev1.Pod) *agent.Eviction { return x.shutdown.Interrupted(pod) },
		PodGone:       x.mirrors.Wake,
		RuntimeListed: x.machine.node.RuntimeListed,
		Watchers:      newPodsAPI(p, x),
		BackoffFirst:  firstBackoff,
		BackoffMax:    longestBackoff,
		Log:           p.log,
	})
	instruments.AddPods(p.metrics, x.supervisor, x.storage.volumes, x.machine.cgroups.Version())
	if q := nodefacts.Settings(p.cfg).MemoryQoS; q != nil {
		instruments.AddProtection(p.metrics, x.supervisor, q.Tiered && x.machine.cgroups.Version() == 2)
	}
	return nil
}

func newProber(p *process, x *parts) *probes.Prober {
	prober := probes.New(probes.Config{
		Exec:    x.runtime.client.Output,
		Changed: func(pod types.UID, _ probes.Status) { x.supervisor.ProbeChanged(pod) },
		Attempt: func(pod types.UID, a probes.Attempt) {
			p.metrics.ProbeAttempted(pod, a)
			if a.Reason != "" {
				x.supervisor.ProbeFailed(pod, a.Container, a.Reason, a.Message)
			}
		},
	})
	p.Start(prober.Run)
	return prober
}

// runPods runs pods after the runtime's first answer, because their cgroups depend on the runtime's cgroup driver.
func runPods(ctx context.Context, p *process, x *parts) error {
	if !x.runtime.monitor.AwaitAnswer(ctx) {
		return nil
	}
	driver, err := x.runtime.monitor.CgroupDriver(ctx, p.cfg.Kubelet.CgroupDriver)
	if err != nil {
		return nil // ctx has ended
	}
	if err := x.machine.cgroups.Use(driver); err != nil {
		return err
	}
	x.machine.facts.UseSystemd(driver == cgroups.DriverSystemd)
	if err := x.machine.allocatable.Setup(); err != nil {
		return err
	}
	var enforcing sync.WaitGroup
	enforcing.Go(func() { x.machine.allocatable.Run(ctx) })
	enforcing.Go(func() { x.evictor.Run(ctx) })
	defer enforcing.Wait()
	x.supervisor.Run(ctx)
	return nil
}

// newTracer makes what sends spans to a collector; nil if none are sampled.
func newTracer(p *process) *trace.Tracer {
	endpoint, perMillion := p.cfg.Tracing()
	if endpoint == "" || perMillion == 0 {
		return nil
	}
	t := trace.New(trace.Config{
		Endpoint:   endpoint,
		PerMillion: perMillion,
		Node:       p.cfg.Node.Name,
		Version:    config.Version,
		Log:        p.log,
	})
	p.metrics.AddDroppedSpans(t.Dropped)
	p.Start(t.Run)
	return t
}
