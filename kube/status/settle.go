package status

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

var errPhaseBack = errors.New("a pod never leaves its terminal phase")

// Settle returns want as it may be published after last: the time of a transition is kept where there was none, and
// nothing steps back. The values have the form of the API server already. What had to be kept from last is returned as
// problems. It changes neither argument.
func Settle(pod *corev1.Pod, last *corev1.PodStatus, want corev1.PodStatus, now time.Time) (corev1.PodStatus, []error) {
	mayRunAgain := podutil.IsMirror(pod) // a static pod that was refused or ended by the node
	if podutil.IsTerminal(last.Phase) && !podutil.IsTerminal(want.Phase) && !mayRunAgain {
		return *last, []error{fmt.Errorf("phase %s after %s: %w", want.Phase, last.Phase, errPhaseBack)}
	}
	out := *want.DeepCopy()
	problems := keepTerminated(pod, last, &out)
	stamp := metav1.Unix(now.Unix(), 0)
	switch {
	case !last.StartTime.IsZero():
		out.StartTime = last.StartTime.DeepCopy()
	case out.StartTime.IsZero():
		out.StartTime = &stamp
	}
	if out.ObservedGeneration == 0 {
		out.ObservedGeneration = generation(pod)
	}
	out.ObservedGeneration = max(out.ObservedGeneration, last.ObservedGeneration)
	if podutil.IsTerminal(out.Phase) {
		unready(&out)
	}
	for i := range out.Conditions {
		settleCondition(pod, last, &out.Conditions[i], stamp)
	}
	return out, problems
}

// finish makes the phase terminal, for a pod of which nothing is left: what waits for the pod's end (Jobs, endpoints)
// must see one before the pod disappears.
func finish(s *corev1.PodStatus) {
	if !podutil.IsTerminal(s.Phase) {
		s.Phase = corev1.PodFailed
		unready(s)
	}
}

// unready sees to it that no pod is published as terminal and ready at once.
func unready(s *corev1.PodStatus) {
	reason := "PodCompleted"
	if s.Phase == corev1.PodFailed {
		reason = "PodFailed"
	}
	for _, t := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady} {
		if c := podutil.Condition(s.Conditions, t); c != nil && c.Status == corev1.ConditionTrue {
			c.Status, c.Reason = corev1.ConditionFalse, reason
			c.Message, c.LastTransitionTime = "", metav1.Time{}
		}
	}
}

// generation returns the generation of the spec that a status describes: 0 for a mirror pod, whose spec comes from a
// manifest.
func generation(pod *corev1.Pod) int64 {
	if podutil.IsMirror(pod) {
		return 0
	}
	return pod.Generation
}

// settleCondition keeps the transition time of a condition whose status did not change (for the resize conditions,
// whose status is always True, the reason counts too) and fills in the generation it was observed at.
func settleCondition(pod *corev1.Pod, last *corev1.PodStatus, c *corev1.PodCondition, stamp metav1.Time) {
	resize := c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress
	old := podutil.Condition(last.Conditions, c.Type)
	switch {
	case old != nil && old.Status == c.Status && (!resize || old.Reason == c.Reason) && !old.LastTransitionTime.IsZero():
		c.LastTransitionTime = old.LastTransitionTime
	case c.LastTransitionTime.IsZero():
		c.LastTransitionTime = stamp
	}
	if c.ObservedGeneration == 0 && !resize && (podutil.OwnsCondition(c.Type) || c.Type == corev1.PodScheduled) {
		c.ObservedGeneration = generation(pod)
	}
	if old != nil {
		c.ObservedGeneration = max(c.ObservedGeneration, old.ObservedGeneration)
	}
}

// keepTerminated puts back the terminated status of containers that may never run again and yet are shown otherwise.
func keepTerminated(pod *corev1.Pod, last, out *corev1.PodStatus) (problems []error) {
	if pod.Spec.RestartPolicy == corev1.RestartPolicyAlways || podutil.RestartsAll(&pod.Spec) {
		return nil
	}
	for role, c := range podutil.Containers(&pod.Spec) {
		before, now := podutil.ContainerStatus(last, c.Name), podutil.ContainerStatus(out, c.Name)
		if role == podutil.RoleEphemeral || before == nil || now == nil || before.State.Terminated == nil ||
			now.State.Terminated != nil || podutil.ShouldRestart(&pod.Spec, c, role, before.State.Terminated.ExitCode) {
			continue
		}
		*now = *before.DeepCopy()
		problems = append(problems,
			fmt.Errorf("container %q has terminated and its restart policy allows no restart", c.Name))
	}
	return problems
}
