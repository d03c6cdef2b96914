package execute

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/cri"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/probes"
)

// minStop is the shortest time between SIGTERM and SIGKILL, however long the preStop hook took.
const minStop = 2 * time.Second

// hooks runs the lifecycle hooks of containers, and stops containers.
type hooks struct{ *Backends }

// postStart runs the postStart hook of a container that has just been started. A hook that was cut off counts as run:
// the container goes on, as with the kubelet, and the command must not run beside its first run.
func (x *hooks) postStart(ctx context.Context, t *Task, s podstate.PostStart) error {
	_, c := podutil.Container(&t.Pod.Spec, s.Name)
	if c == nil || c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	err := x.run(ctx, t, s.ID, c, c.Lifecycle.PostStart)
	if !cri.IsCutOff(err) {
		return err
	}
	x.Events.PodEvent(t.Pod, c.Name, corev1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
	t.Log.Warn("postStart hook was cut off", "container", c.Name, "err", err)
	return nil
}

// run runs a lifecycle handler for a container instance.
func (x *hooks) run(ctx context.Context, t *Task, id string, c *corev1.Container, h *corev1.LifecycleHandler) error {
	err := probes.RunHook(ctx, h, probes.HookTarget{
		Pod:         podutil.Text(t.Pod),
		ContainerID: id,
		Container:   c,
		Exec:        x.Runtime.Output,
		Warn: func(reason, message string) {
			x.Events.PodEvent(t.Pod, c.Name, corev1.EventTypeWarning, reason, message)
			if reason == probes.FallbackReason {
				x.Metrics.HookFellBack()
			}
		},
		PodIP: x.Node().PodAddress(t.Sandbox.OnHost(t.Pod), t.podIPs()),
	})
	if errors.Is(err, probes.ErrSleepEnded) {
		x.Metrics.SleepEnded()
	}
	return err
}

// preStop runs the preStop hook with which a container was created, also if the spec no longer has the container. It
// fails only if the runtime could not be asked. A hook that was cut off has run: what is left of the time is for the
// signal.
func (x *hooks) preStop(ctx context.Context, t *Task, s podstate.PreStop) error {
	x.killing(t, podstate.StopContainer(s))
	_, c := podutil.Container(&t.Pod.Spec, s.Name)
	if c == nil {
		c = &corev1.Container{Name: s.Name, Ports: t.made.Ports}
	}
	err := x.run(ctx, t, s.ID, c, t.made.PreStop)
	if err == nil {
		return nil
	}
	x.Events.PodEvent(t.Pod, c.Name, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
	if cri.IsUnavailable(err) && !cri.IsCutOff(err) {
		return err
	}
	t.Log.Warn("preStop hook failed", "container", c.Name, "err", err)
	return nil
}

// stop stops a container. Even without a grace period a process gets the time that it needs to handle the signal.
func (x *hooks) stop(ctx context.Context, t *Task, s podstate.StopContainer) error {
	x.killing(t, s)
	return x.Runtime.StopContainer(ctx, s.ID, max(time.Until(s.Deadline), minStop))
}

// killing records the event about the stop of a container, when it begins, and when it goes on for another reason.
func (x *hooks) killing(t *Task, s podstate.StopContainer) {
	if s.Reason != t.begun.Reason {
		x.Events.PodEvent(t.Pod, s.Name, corev1.EventTypeNormal, "Killing", s.Reason)
	}
}
