package execute

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/probes"
)

// minStop is the shortest time between SIGTERM and SIGKILL, however long the preStop hook took.
const minStop = 2 * time.Second

// hooks runs the lifecycle hooks of containers, and stops containers after theirs.
type hooks struct {
	*Backends
	mu sync.Mutex
	// preStops are closed when the hook of a container that is being stopped has ended, by the container's ID.
	preStops map[string]chan struct{}
}

// postStart runs the postStart hook of a container that has just been started.
func (x *hooks) postStart(ctx context.Context, t *Task, s podstate.PostStart) error {
	_, c := podutil.Container(&t.Pod.Spec, s.Name)
	if c == nil || c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	return x.run(ctx, t, s.ID, c, c.Lifecycle.PostStart)
}

// run runs a lifecycle handler for a container instance.
func (x *hooks) run(ctx context.Context, t *Task, id string, c *corev1.Container, h *corev1.LifecycleHandler) error {
	err := probes.RunHook(ctx, h, probes.HookTarget{
		ContainerID: id,
		Container:   c,
		Exec:        x.Runtime.Output,
		Warn: func(reason, message string) {
			x.Events.PodEvent(t.Pod, c.Name, corev1.EventTypeWarning, reason, message)
			if reason == probes.FallbackReason {
				x.Metrics.HookFellBack()
			}
		},
		PodIP: x.Node().PodAddress(t.Pod, t.podIPs()),
	})
	if errors.Is(err, probes.ErrSleepEnded) {
		x.Metrics.SleepEnded()
	}
	return err
}

// stop runs the preStop hook within the grace period and then stops the container with the time that is left. A hook
// that takes longer goes on until the container has ended. A stop that overtakes another waits for the hook of
// that one: it does not run twice.
func (x *hooks) stop(ctx context.Context, t *Task, s podstate.StopContainer) error {
	x.Events.PodEvent(t.Pod, s.Name, corev1.EventTypeNormal, "Killing", s.Reason)
	left := time.Until(s.Deadline)
	if c, h := preStopHook(t, s.ID, s.Name); h != nil && !s.HookRan && left > 0 {
		ended, end := x.preStopOnce(ctx, t, s.ID, c, h)
		defer end()
		select {
		case <-ended:
		case <-time.After(left):
		}
	}
	// Even without a grace period a process gets the time that it needs to handle the signal.
	left = max(time.Until(s.Deadline), minStop)
	if err := ctx.Err(); err != nil {
		return err
	}
	return x.Runtime.StopContainer(ctx, s.ID, left)
}

// preStopOnce begins the preStop hook of a container, unless an earlier stop has begun it. ended is closed when the
// hook has ended. end cancels it and waits for that; of a hook that an earlier stop has begun, it does nothing.
func (x *hooks) preStopOnce(ctx context.Context, t *Task, id string, c *corev1.Container, h *corev1.LifecycleHandler) (
	ended <-chan struct{}, end func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if running := x.preStops[id]; running != nil {
		return running, func() {}
	}
	done := make(chan struct{})
	x.preStops[id] = done
	hook, cancel := context.WithCancel(ctx)
	go func() {
		x.preStop(hook, t, id, c, h)
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.preStops, id)
		close(done)
	}()
	return done, func() {
		cancel()
		<-done
	}
}

// preStopEarly runs the preStop hook of a container that is stopped after others.
func (x *hooks) preStopEarly(ctx context.Context, t *Task, s podstate.PreStop) {
	if c, h := preStopHook(t, s.ID, s.Name); h != nil {
		x.preStop(ctx, t, s.ID, c, h)
	}
}

// preStopHook returns a running container and its preStop hook: from the spec, or from the runtime's annotations for an
// orphan. The hook is nil if there is none.
func preStopHook(t *Task, id, name string) (*corev1.Container, *corev1.LifecycleHandler) {
	if i := t.instance(id); i == nil || i.State != podstate.ContainerRunning {
		return nil, nil
	}
	_, c := podutil.Container(&t.Pod.Spec, name)
	switch {
	case c == nil:
		return &corev1.Container{Name: name, Ports: t.Made.Ports}, t.Made.PreStop
	case c.Lifecycle == nil:
		return c, nil
	}
	return c, c.Lifecycle.PreStop
}

// preStop runs the preStop hook of a container.
func (x *hooks) preStop(ctx context.Context, t *Task, id string, c *corev1.Container, h *corev1.LifecycleHandler) {
	if err := x.run(ctx, t, id, c, h); err != nil {
		t.Log.Warn("preStop hook failed", "container", c.Name, "err", err)
		x.Events.PodEvent(t.Pod, c.Name, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
	}
}
