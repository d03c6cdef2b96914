package status

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// maxTerminationMessages is what the termination messages of a pod may hold together, in bytes, as the kubelet bounds
// it.
const maxTerminationMessages = 12 * 1024

var errPhaseBack = errors.New("a pod never leaves its terminal phase")

// settle returns want as it may be published after last: times that tell of a transition are kept where there was none,
// nothing steps back, and values have the form the API server gives them. What had to be kept from last is told as
// problems. It changes neither argument.
func settle(pod *corev1.Pod, last *corev1.PodStatus, want corev1.PodStatus, now time.Time) (corev1.PodStatus, []error) {
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
		out.ObservedGeneration = pod.Generation
	}
	out.ObservedGeneration = max(out.ObservedGeneration, last.ObservedGeneration)
	if podutil.IsTerminal(out.Phase) {
		unready(&out)
	}
	for i := range out.Conditions {
		settleCondition(pod, last, &out.Conditions[i], stamp)
	}
	normalize(pod, &out)
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
			c.Status, c.Reason, c.Message, c.LastTransitionTime = corev1.ConditionFalse, reason, "", metav1.Time{}
		}
	}
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
	if c.ObservedGeneration == 0 && !resize && (owned[c.Type] || c.Type == corev1.PodScheduled) {
		c.ObservedGeneration = pod.Generation
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
		problems = append(problems, fmt.Errorf("container %q has terminated and its restart policy allows no restart", c.Name))
	}
	return problems
}

// normalize cuts times to the whole seconds the API keeps, bounds and repairs messages, and orders container statuses
// as the kubelet does: by name, init containers as in the spec.
func normalize(pod *corev1.Pod, s *corev1.PodStatus) {
	seconds(s.StartTime)
	for i := range s.Conditions {
		seconds(&s.Conditions[i].LastProbeTime)
		seconds(&s.Conditions[i].LastTransitionTime)
	}
	spec := &pod.Spec
	limit := maxTerminationMessages / max(1, podutil.Count(spec))
	for _, list := range [][]corev1.ContainerStatus{
		s.ContainerStatuses, s.InitContainerStatuses, s.EphemeralContainerStatuses,
	} {
		for i := range list {
			normalizeState(&list[i].State, limit)
			normalizeState(&list[i].LastTerminationState, limit)
		}
	}
	byName := func(a, b corev1.ContainerStatus) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortStableFunc(s.ContainerStatuses, byName)
	slices.SortStableFunc(s.EphemeralContainerStatuses, byName)
	at := map[string]int{}
	for _, c := range podutil.Containers(spec) {
		at[c.Name] = len(at)
	}
	slices.SortStableFunc(s.InitContainerStatuses, func(a, b corev1.ContainerStatus) int {
		return cmp.Compare(at[a.Name], at[b.Name])
	})
}

func normalizeState(s *corev1.ContainerState, limit int) {
	if s.Running != nil {
		seconds(&s.Running.StartedAt)
	}
	if s.Waiting != nil {
		s.Waiting.Message = strings.ToValidUTF8(s.Waiting.Message, "\uFFFD")
	}
	if t := s.Terminated; t != nil {
		seconds(&t.StartedAt)
		seconds(&t.FinishedAt)
		t.Message = truncate(strings.ToValidUTF8(t.Message, "\uFFFD"), limit)
	}
}

func seconds(t *metav1.Time) {
	if t != nil && !t.IsZero() {
		*t = metav1.Unix(t.Unix(), 0)
	}
}

// truncate cuts s to at most limit bytes without splitting a character. Broken UTF-8 would come back from the API
// server changed, and so look like a difference for ever.
func truncate(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && s[limit]&0xC0 == 0x80 {
		limit--
	}
	return s[:limit]
}
