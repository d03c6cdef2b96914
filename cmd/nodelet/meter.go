package main

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/plan"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/metrics"
	"github.com/nodelet/nodelet/probes"
	"github.com/nodelet/nodelet/volumes"
	"github.com/nodelet/nodelet/volumes/iscsi"
)

// meter counts what the agent does.
type meter struct {
	m    *measured
	last time.Time // begin of the last relist; the supervisor's own goroutine alone relists
}

func (c *meter) Step(pod *corev1.Pod, s plan.Step, took time.Duration, p *plan.Problem) {
	a := c.m.agent
	if p != nil && p.Cancelled {
		return
	}
	switch s := s.(type) {
	case plan.Prepare:
		a.Cgroups.With("create").Took(took)
	case plan.RemoveCgroup:
		a.Cgroups.With("destroy").Took(took)
	case plan.Mount:
		a.Storage.With("false", "volume_mount", outcomeOf(p), plugin(pod, s.Volume)).Took(took)
	case plan.Unmount:
		a.Storage.With("false", "volume_unmount", outcomeOf(p), plugin(pod, s.Volume)).Took(took)
	case plan.CreateSandbox:
		handler := "" // the kubelet's label is the handler, which is mostly named as the class
		if class := pod.Spec.RuntimeClassName; class != nil {
			handler = *class
		}
		a.RunSandbox.With(handler).Took(took)
		if pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers {
			a.StartedUserNamespaced.Inc()
			if p != nil {
				a.StartedUserNamespacedErrors.Inc()
			}
		}
		if p != nil {
			a.RunSandboxErrors.With(handler).Inc()
			a.StartedPodsErrors.Inc()
		} else {
			a.StartedPods.Inc()
		}
	case plan.CreateContainer:
		if p != nil {
			c.userNamespaceFailed(pod)
			a.StartedContainersErrors.With(p.Reason, containerType(pod, s.Name)).Inc()
		}
	case plan.StartContainer:
		if p != nil {
			c.userNamespaceFailed(pod)
			a.StartedContainersErrors.With(p.Reason, containerType(pod, s.Name)).Inc()
		} else {
			a.StartedContainers.With(containerType(pod, s.Name)).Inc()
		}
	}
}

// userNamespaceFailed counts what went wrong in a pod with a user namespace: mostly that shows when a container is made.
func (c *meter) userNamespaceFailed(pod *corev1.Pod) {
	if pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers {
		c.m.agent.StartedUserNamespacedErrors.Inc()
	}
}

func outcomeOf(p *plan.Problem) string {
	if p != nil {
		return "fail-unknown"
	}
	return "success"
}

func plugin(pod *corev1.Pod, volume string) string {
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.Name == volume {
			return volumePlugin(v)
		}
	}
	return "kubernetes.io/csi" // what is on disk bears the name of its PersistentVolume
}

func containerType(pod *corev1.Pod, name string) string {
	switch role, c := podutil.Container(&pod.Spec, name); {
	case c == nil || role == podutil.RoleApp:
		return "container"
	case role == podutil.RoleEphemeral:
		return "ephemeral_container"
	}
	return "init_container"
}

func (c *meter) Turn(kind string, took time.Duration) { c.m.agent.PodWorker.With(kind).Took(took) }

func (c *meter) Pulled(bytes uint64, took time.Duration) {
	c.m.agent.ImagePull.With(metrics.ImageSize(bytes)).Took(took)
}

func (c *meter) Running(pod *corev1.Pod, seen time.Time, pulling time.Duration) {
	a, now := c.m.agent, time.Now()
	a.PodStart.Took(now.Sub(seen))
	if pod.CreationTimestamp.IsZero() {
		return
	}
	total := max(0, now.Sub(pod.CreationTimestamp.Time))
	a.PodStartTotal.Took(total)
	a.PodStartSLI.Took(max(0, total-pulling))
}

func (c *meter) Ended(pod *corev1.Pod, container string, end *corev1.ContainerStateTerminated) {
	c.m.agent.TerminatedContainers.With(containerType(pod, container), strconv.Itoa(int(end.ExitCode)), end.Reason).Inc()
}

func (c *meter) Relisted(began time.Time, took time.Duration) {
	a := c.m.agent
	a.Relist.Took(took)
	if !c.last.IsZero() {
		a.RelistInterval.Took(began.Sub(c.last))
	}
	c.last = began
	a.RelistLast.Set(float64(began.Unix()))
}

func (c *meter) Rejected(reason string) { c.m.agent.Admission.With(reason).Inc() }

func (c *meter) Preempted(resource string) { c.m.agent.Preemptions.With(resource).Inc() }

func (c *meter) SELinux(verdict volumes.SELinuxResult, driver, accessMode string, applies bool) {
	s, plugin := c.m.agent.SELinux, driver
	if driver != iscsi.Plugin {
		plugin = "kubernetes.io/csi/" + driver
	}
	of := func(errors, warnings *metrics.Vec[*metrics.Gauge]) *metrics.Vec[*metrics.Gauge] {
		if applies {
			return errors
		}
		return warnings
	}
	switch verdict {
	case volumes.SELinuxMounted:
		s.Admitted.With(plugin, accessMode).Add(1)
	case volumes.SELinuxUnknown:
		of(s.ContainerErrors, s.ContainerWarnings).With(accessMode).Add(1)
	case volumes.SELinuxMixed:
		of(s.PodErrors, s.PodWarnings).With(accessMode).Add(1)
	case volumes.SELinuxConflict:
		s.VolumeErrors.With(plugin, accessMode).Add(1)
	}
}

func (c *meter) Gone(pod *corev1.Pod) {
	c.m.probes.Forget(pod.Namespace, pod.Name, string(pod.UID))
}

// probed counts an attempt of a probe, and passes it on.
func (n *nodelet) probed(pod types.UID, a probes.Attempt) {
	n.measured.probes.Attempt(a.Namespace, a.Pod, string(pod), a.Container, string(a.Kind), string(a.Outcome), a.Took)
	n.supervisor.ProbeAttempted(pod, a)
}
