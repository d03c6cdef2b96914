package podstatus

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Progress is how far the plan has ended the pod.
type Progress struct {
	// Cancelling: steps in flight are being cancelled, but they may still start something.
	Cancelling bool
	// Released: no process of the pod runs any more, and everything it held is released.
	Released bool
}

// Build returns the pod's status as it should be published. The status may share values with the facts in s, so the
// caller must change neither.
func Build(s *podstate.State, progress Progress) *corev1.PodStatus {
	b := &builder{State: s, released: progress.Released, quiescent: !progress.Cancelling && s.Quiescent()}
	api := &s.Pod.Status
	b.st = &corev1.PodStatus{
		ObservedGeneration:                   max(s.Pod.Generation, s.Reported.ObservedGeneration),
		StartTime:                            b.startTime(),
		QOSClass:                             podutil.QOS(s.Pod),
		NominatedNodeName:                    api.NominatedNodeName,
		ResourceClaimStatuses:                api.ResourceClaimStatuses,
		ExtendedResourceClaimStatus:          api.ExtendedResourceClaimStatus,
		NodeAllocatableResourceClaimStatuses: api.NodeAllocatableResourceClaimStatuses,
	}
	if !s.EverRan() && (s.Rejected != nil || b.rejectedBefore()) {
		b.rejected()
	} else {
		b.admitted()
	}
	return b.st
}

// builder computes the status that follows from a state.
type builder struct {
	*podstate.State
	st                  *corev1.PodStatus
	quiescent, released bool
	// unstarted is the state of all containers that have not started yet; nil until it is needed.
	unstarted *corev1.ContainerStateWaiting
}

func (b *builder) startTime() *metav1.Time {
	if t := b.Reported.StartTime; !t.IsZero() {
		return t
	}
	t := seconds(b.Now)
	return &t
}

// seconds returns a time truncated to whole seconds, as the API stores it.
func seconds(t time.Time) metav1.Time {
	if t.IsZero() {
		return metav1.Time{}
	}
	return metav1.NewTime(t.Truncate(time.Second))
}

// rejectedBefore reports whether an earlier run of the agent, or the kubelet, rejected a pod: its status shows the end
// of the pod, but none of its containers. Of an orphan no containers are known.
func (b *builder) rejectedBefore() bool {
	st := b.Reported
	return podutil.IsTerminal(st.Phase) && len(st.ContainerStatuses) == 0 && len(b.Pod.Spec.Containers) > 0
}

// rejected fills in the status of a pod that was rejected and has no containers.
func (b *builder) rejected() {
	old := b.Reported
	b.st.Phase = old.Phase
	b.st.Reason, b.st.Message = old.Reason, old.Message
	if b.Rejected != nil {
		b.st.Phase = corev1.PodFailed
		b.st.Reason, b.st.Message = b.Rejected.Reason, podutil.MessageRejected+b.Rejected.Message
	}
	b.foreignConditions()
}

// admitted fills in the status of any other pod. It reports a terminal phase only when no container can run, the
// network is released and no resource claim is prepared: once the control plane sees the phase, it reuses what the
// pod held.
func (b *builder) admitted() {
	b.containerStatuses()
	b.addresses()
	b.resources()
	phase, reason, message := b.phase(false)
	b.st.Phase = phase
	b.conditions()
	if b.released {
		b.closeContainers()
		phase, reason, message = b.phase(true)
	}
	if old := b.Reported; !b.quiescent && podutil.IsTerminal(phase) && !podutil.IsTerminal(old.Phase) {
		phase = old.Phase
		reason, message = old.Reason, old.Message
	}
	b.st.Phase = cmp.Or(phase, corev1.PodPending)
	b.st.Reason, b.st.Message = reason, message
}

// phase returns the pod's phase with its reason and message.
func (b *builder) phase(released bool) (phase corev1.PodPhase, reason, message string) {
	old := b.Reported
	phase = b.phaseByContainers()
	switch {
	case podutil.IsTerminal(old.Phase):
		phase = old.Phase
	case b.Rejected != nil:
		return corev1.PodFailed, b.Rejected.Reason, podutil.MessageRejected + b.Rejected.Message
	case b.Ending != nil && b.Ending.Reason == podutil.ReasonPreempting && phase == corev1.PodSucceeded:
		return phase, "", "" // its containers had completed, or exited with code 0 when they were stopped
	case b.Ending != nil && b.Ending.Reason != "":
		return corev1.PodFailed, b.Ending.Reason, b.Ending.Message
	case released && !podutil.IsTerminal(phase) && !podutil.IsStatic(b.Pod):
		phase = corev1.PodFailed
	case b.Ending == nil && podutil.IsTerminal(phase):
		phase = old.Phase // the pod still runs, regardless of the container statuses
	}
	if phase == old.Phase {
		return phase, old.Reason, old.Message
	}
	return phase, "", ""
}

// tally counts the container statuses that determine the phase.
type tally struct {
	running, waiting, stopped, succeeded, final int
	pendingInit, pendingSidecar, failedInit     int
}

// phaseByContainers derives the phase from the containers' statuses, as the kubelet does.
func (b *builder) phaseByContainers() corev1.PodPhase {
	t, initialized := b.count()
	switch {
	case t.failedInit > 0:
		return corev1.PodFailed
	case t.pendingInit > 0, t.pendingSidecar > 0 && !initialized, t.waiting > 0:
		return corev1.PodPending
	case t.running > 0:
		return corev1.PodRunning
	case t.stopped == 0:
		return corev1.PodPending
	case t.stopped != t.final && (!b.quiescent || podutil.IsStatic(b.Pod)): // a mirror pod does not end
		return corev1.PodRunning
	case t.stopped == t.succeeded:
		return corev1.PodSucceeded
	}
	return corev1.PodFailed
}

// count counts the statuses. initialized reports whether an app container was created in the current sandbox.
func (b *builder) count() (t tally, initialized bool) {
	for _, slot := range b.Slots {
		switch c := podutil.ContainerStatus(b.st, slot.Spec.Name); slot.Role {
		case podutil.RoleInit:
			t.countInit(slot, c)
		case podutil.RoleSidecar:
			t.countSidecar(c)
		case podutil.RoleApp:
			t.countApp(slot, c)
			initialized = initialized || slot.InCurrentSandbox
		}
	}
	return t, initialized
}

// endOf returns the end of a container that does not run now; nil if it runs or never ran.
func endOf(c *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	if c.State.Waiting != nil {
		return c.LastTerminationState.Terminated
	}
	return c.State.Terminated
}

func (t *tally) countInit(slot *podstate.Slot, c *corev1.ContainerStatus) {
	end := endOf(c)
	switch {
	case end == nil:
		t.pendingInit++
	case podutil.InitFailed(end.ExitCode, end.Reason) && !slot.RestartsAfter(end.ExitCode, end.Reason) && !slot.Passed:
		t.failedInit++
	}
}

func (t *tally) countSidecar(c *corev1.ContainerStatus) {
	switch {
	case c.State.Running != nil:
		t.running++
		if c.Started == nil || !*c.Started {
			t.pendingSidecar++
		}
	case endOf(c) == nil:
		t.pendingSidecar++
		t.waiting++
	}
}

func (t *tally) countApp(slot *podstate.Slot, c *corev1.ContainerStatus) {
	end := endOf(c)
	switch {
	case c.State.Running != nil:
		t.running++
		return
	case end == nil:
		t.waiting++
		return
	}
	t.stopped++
	if !slot.RestartsAfter(end.ExitCode, end.Reason) {
		t.final++
	}
	if c.State.Terminated != nil && end.ExitCode == 0 {
		t.succeeded++
	}
}
