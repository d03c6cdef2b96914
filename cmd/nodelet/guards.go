package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/admission"
	"github.com/nodelet/nodelet/agent/eviction"
	"github.com/nodelet/nodelet/agent/eviction/policy"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/shutdown"
	"github.com/nodelet/nodelet/kube/node"
	"github.com/nodelet/nodelet/kube/status"
	"github.com/nodelet/nodelet/metrics/usage"
	"github.com/nodelet/nodelet/systemd"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// guards refuse and end pods to protect the node. evictor and shutdown are made after the supervisor, which asks them.
type guards struct {
	p        *process
	machine  *machine
	plugins  *pluginHosts
	evictor  *eviction.Evictor
	shutdown *shutdown.Shutdown
}

// admit decides whether a pod that is new on the node may run.
func (g *guards) admit(pod *corev1.Pod, others []*corev1.Pod) admission.Verdict {
	for _, refuse := range []func(*corev1.Pod) *podstate.Rejection{g.shutdown.Admit, g.evictor.Admit} {
		if r := refuse(pod); r != nil {
			return admission.Verdict{Rejection: r}
		}
	}
	return admission.Admit(pod, admission.Node{
		Object:        g.machine.node.Node(),
		Allocatable:   g.machine.node.Allocatable(),
		Device:        g.plugins.devices.Known,
		Volume:        podfs.Supported,
		UnsafeSysctls: g.p.cfg.Pods.UnsafeSysctls,
		AppArmor:      g.machine.facts.AppArmor(),
	}, others)
}

// connect makes what ends pods when the node runs short or goes down.
func (g *guards) connect(api *apiServer, r *containerRuntime, u *usage.Collector, l *links) {
	p := g.p
	report := reporter{process: p, node: g.machine.node, recorder: api.recorder}
	e := p.cfg.Eviction
	g.evictor = eviction.New(eviction.Config{
		Thresholds:    eviction.Thresholds(p.cfg),
		Transition:    e.TransitionPeriod,
		MaxGrace:      e.MaxPodGrace,
		EnforceLimits: p.cfg.Node.LocalStorageIsolation,
		Pods:          l.supervisor,
		Node: eviction.NewMachine(eviction.MachineConfig{
			RootDir: p.cfg.Paths.Root,
			Cgroups: g.machine.cgroups,
			Usage:   u,
			Runtime: r.client,
			Log:     p.log,
		}),
		Images:   r.collector,
		Reporter: report,
		Log:      p.log,
	})
	var groups []shutdown.Group
	for _, s := range p.cfg.Shutdown.ByPriority {
		groups = append(groups, shutdown.Group{Priority: s.Priority, Grace: s.Grace})
	}
	g.shutdown = shutdown.New(shutdown.Config{
		Groups:   groups,
		RootDir:  p.cfg.Paths.Root,
		Pods:     l.supervisor,
		Connect:  func(ctx context.Context) (shutdown.Bus, error) { return systemd.OpenLogind(ctx) },
		Reporter: report,
		Log:      p.log,
	})
	p.metrics.AddShutdown(g.shutdown.Times)
	p.before(g.shutdown.Resume)
	p.start(g.shutdown.Run)
}

// reporter publishes what is found and done about the node as a whole.
type reporter struct {
	*process
	node     *node.Reporter
	recorder *status.Recorder
}

func (r reporter) SetPressure(p policy.Pressure) { r.node.SetPressure(node.Pressure(p)) }

func (r reporter) SetShutdown(reason error) { r.node.SetShutdown(reason) }

func (r reporter) NodeEvent(eventType, reason, message string) {
	r.recorder.NodeEvent(eventType, reason, message)
}

func (r reporter) PodEvent(pod *corev1.Pod, eventType, reason, message string, annotations map[string]string) {
	r.recorder.Annotated(status.PodRef(pod, ""), eventType, reason, message, annotations)
}

func (r reporter) Evicted(signal string) { r.meter.Evicted(signal) }
