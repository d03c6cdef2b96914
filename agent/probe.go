package agent

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/probes"
)

// probeTargets converts the probes of one container for the prober.
func probeTargets(t plan.ProbeTarget, ip string) []probes.Target {
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
			target.Command = staticCommand(p.Exec.Command, t.Container)
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

// staticCommand resolves references to environment variables that the spec gives literally.
func staticCommand(command []string, c *corev1.Container) []string {
	lookup := func(name string) (string, bool) {
		for i := range c.Env {
			if e := &c.Env[i]; e.Name == name && e.ValueFrom == nil {
				return e.Value, true
			}
		}
		return "", false
	}
	out := make([]string, len(command))
	for i, arg := range command {
		out[i] = spec.Expand(arg, lookup)
	}
	return out
}

// verdicts are the newest results of the probes of the pod's containers.
func (w *worker) verdicts() map[string]podstate.Verdict {
	if len(w.reported.probed) == 0 {
		return nil
	}
	all := map[string]podstate.Verdict{}
	for _, v := range w.backends.Probes.Verdicts(w.desired.Pod.UID) {
		of := all[v.ContainerID]
		switch v.Kind {
		case probes.Startup:
			of.Startup = result(v.Result)
		case probes.Liveness:
			of.Liveness = result(v.Result)
		case probes.Readiness:
			of.Readiness = result(v.Result)
		}
		all[v.ContainerID] = of
	}
	return all
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

// ProbeAttempted takes the result of one run of a probe, which may be worth an event.
func (s *Supervisor) ProbeAttempted(pod types.UID, a probes.Attempt) {
	if a.Reason == "" {
		return
	}
	s.post(func() {
		if e := s.workers[pod]; e != nil {
			ref := podReference(e.source, fieldPath(e.source, a.Container))
			s.backends.Events.Event(ref, corev1.EventTypeWarning, a.Reason, a.Message)
		}
	})
}

// hostIP is the node's primary address; empty before it is known.
func (h *Backends) hostIP() string {
	if ips := h.Node().HostIPs; len(ips) > 0 {
		return ips[0]
	}
	return ""
}

// podAddress is the address at which probes and hooks reach the containers of a pod.
func (h *Backends) podAddress(pod *corev1.Pod, sandbox *podstate.Sandbox) string {
	switch {
	case pod.Spec.HostNetwork:
		return h.hostIP()
	case sandbox != nil && len(sandbox.IPs) > 0:
		return sandbox.IPs[0]
	}
	return ""
}
