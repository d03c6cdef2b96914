package agent

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/probes"
)

// postStart runs the postStart hook of a container that has just been started.
func (t *task) postStart(ctx context.Context, s podstate.PostStart) error {
	_, c := podutil.Container(&t.pod.Spec, s.Name)
	if c == nil || c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	return t.hook(ctx, s.ID, c, c.Lifecycle.PostStart)
}

// hook runs a lifecycle handler for a container instance.
func (t *task) hook(ctx context.Context, id string, c *corev1.Container, h *corev1.LifecycleHandler) error {
	warn := func(reason, message string) { t.containerEvent(c.Name, corev1.EventTypeWarning, reason, message) }
	return probes.RunHook(ctx, h, probes.HookTarget{ContainerID: id, Container: c, Exec: t.backends.Exec, Warn: warn,
		PodIP: t.backends.podAddress(t.pod, t.sandbox)})
}

// stopContainer runs the preStop hook within the grace period and then stops the container with the time that is left.
func (t *task) stopContainer(ctx context.Context, s podstate.StopContainer) error {
	t.containerEvent(s.Name, corev1.EventTypeNormal, "Killing", s.Reason)
	if !s.HookRan {
		t.runPreStop(ctx, s)
	}
	// Even without a grace period a process gets the time that it needs to handle the signal.
	left := max(time.Until(s.Deadline), minStop)
	if err := ctx.Err(); err != nil {
		return err
	}
	return t.backends.Runtime.StopContainer(ctx, s.ID, left)
}

// preStop returns the preStop hook of a running container: from its spec, or from the runtime's annotations for an
// orphan.
func (t *task) preStop(s podstate.StopContainer) *corev1.LifecycleHandler {
	if i := t.instance(s.ID); i == nil || i.State != podstate.ContainerRunning {
		return nil
	}
	if _, c := podutil.Container(&t.pod.Spec, s.Name); c != nil {
		if c.Lifecycle == nil {
			return nil
		}
		return c.Lifecycle.PreStop
	}
	return t.made.PreStop
}

// runPreStop runs the preStop hook of a container that has one, within its grace period.
func (t *task) runPreStop(ctx context.Context, s podstate.StopContainer) {
	h := t.preStop(s)
	if h == nil || time.Until(s.Deadline) <= 0 {
		return
	}
	ctx, cancel := context.WithDeadline(ctx, s.Deadline)
	defer cancel()
	_, c := podutil.Container(&t.pod.Spec, s.Name)
	if c == nil {
		c = &corev1.Container{Name: s.Name, Ports: t.made.Ports}
	}
	if err := t.hook(ctx, s.ID, c, h); err != nil {
		t.log.Warn("preStop hook failed", "container", s.Name, "err", err)
		t.containerEvent(s.Name, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
	}
}

// removeContainer removes an exited instance and, unless its log is kept, the log and the link to it.
func (t *task) removeContainer(ctx context.Context, s podstate.RemoveContainer) error {
	if err := t.backends.Runtime.RemoveContainer(ctx, s.ID); err != nil {
		return err
	}
	c := t.instance(s.ID)
	if c == nil || s.KeepLog {
		return nil
	}
	if err := t.backends.Logs.RemoveLog(t.logPath(s.Name, c.Attempt), t.linkName(s.Name, s.ID)); err != nil {
		return fmt.Errorf("remove log: %w", err)
	}
	return nil
}

// noteReset records that all containers of the pod are to restart, or that they have restarted.
func (t *task) noteReset(s podstate.NoteReset) error {
	if s.Over {
		return t.backends.PodFS.ForgetReset(t.pod.UID)
	}
	return t.backends.PodFS.NoteReset(t.pod.UID)
}

// removeDir removes what is left on the disk of a pod that is gone. The pod directory goes last, because by it a later
// process finds the rest.
func (t *task) removeDir(ctx context.Context) error {
	if err := t.backends.Logs.RemovePod(string(t.pod.UID)); err != nil {
		return err
	}
	if err := t.backends.PodFS.RemovePodDir(ctx, t.pod.UID); err != nil {
		return err
	}
	if t.backends.UserNS != nil {
		t.backends.UserNS.Release(t.pod.UID)
	}
	t.backends.Devices.Release(t.pod.UID)
	return nil
}
