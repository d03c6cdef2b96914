// Package podprobes connects the workers of pods with the prober: it turns what a plan wants probed into probes, and
// their results into facts of the pod.
//
// It owns the conversion only; package probes runs the probes, and agent/plan decides which. The workers call it. It
// has no state.
package podprobes

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/probes"
)

// Prober runs probes: *probes.Prober, where each method is described.
type Prober interface {
	Set(pod types.UID, targets []probes.Target)
	Statuses(pod types.UID) []probes.Status
}

// Probes are the probes of pods.
type Probes struct{ prober Prober }

// New returns the probes that prober runs.
func New(prober Prober) *Probes { return &Probes{prober: prober} }

// Set sets what is probed of a pod, whose containers are reached at address. No targets end its probes.
func (p *Probes) Set(pod *corev1.Pod, address string, targets []plan.ProbeTarget) {
	var all []probes.Target
	for _, t := range targets {
		all = append(all, targetsOf(t, address)...)
	}
	for i := range all {
		all[i].Namespace, all[i].Pod = pod.Namespace, pod.Name
	}
	p.prober.Set(pod.UID, all)
}

// Results returns the newest results of the probes of a pod, by container ID.
func (p *Probes) Results(pod types.UID) map[string]podstate.ProbeResults {
	all := map[string]podstate.ProbeResults{}
	for _, v := range p.prober.Statuses(pod) {
		of := all[v.ContainerID]
		switch v.Kind {
		case probes.Startup:
			of.Startup = result(v.Result)
		case probes.Liveness:
			of.Liveness = result(v.Result)
		case probes.Readiness:
			of.Readiness = result(v.Result)
		}
		if v.Kind != probes.Liveness && v.Result != probes.Success {
			of.Failing = cmp.Or(v.Message, of.Failing)
		}
		all[v.ContainerID] = of
	}
	return all
}

// targetsOf converts the probes of one container for the prober.
func targetsOf(t plan.ProbeTarget, ip string) []probes.Target {
	var all []probes.Target
	add := func(kind probes.Kind, p *corev1.Probe, known bool) {
		if p == nil {
			return
		}
		target := probes.Target{
			ContainerID: t.ContainerID,
			Container:   t.Container,
			Kind:        kind,
			Probe:       p,
			PodIP:       ip,
			StartedAt:   t.StartedAt,
		}
		if p.Exec != nil {
			target.Command = func() []string { return staticCommand(p.Exec.Command, t.Container) }
		}
		if known {
			target.Known = probes.Success
		}
		all = append(all, target)
	}
	if !t.ReadinessOnly {
		add(probes.Startup, t.Container.StartupProbe, t.Started)
		add(probes.Liveness, t.Container.LivenessProbe, t.Started)
	}
	add(probes.Readiness, t.Container.ReadinessProbe, t.Ready)
	return all
}

// maxCommand bounds the command of an exec probe with the values of its references, in bytes. A process may get as much
// with the usual limit of its stack.
const maxCommand = 2 << 20

// staticCommand resolves references to environment variables that the spec gives literally. As with the kubelet, one
// that it takes from elsewhere is empty, and of several with the same name the last counts. An argument that exceeds
// maxCommand then stays as it is.
func staticCommand(command []string, c *corev1.Container) []string {
	values := map[string]string{}
	for _, e := range c.Env {
		values[e.Name] = e.Value
	}
	lookup := func(name string) (value string, known bool) {
		value, known = values[name]
		return value, known
	}
	out := slices.Clone(command)
	left := maxCommand
	for i, arg := range command {
		if expanded, err := spec.Expand(arg, left, lookup); err == nil {
			out[i] = expanded
			left -= len(expanded)
		}
	}
	return out
}

func result(r probes.Result) podstate.ProbeResult {
	switch r {
	case probes.Success:
		return podstate.ProbeSuccess
	case probes.Failure:
		return podstate.ProbeFailure
	}
	return podstate.ProbeUnknown
}
