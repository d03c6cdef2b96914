package status

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

var errPhaseBack = errors.New("a pod never leaves its terminal phase")

// Settle returns want as it may be published after last: no phase steps back, no container that may not run again is
// shown as running, and no observed generation gets smaller. What had to be kept from last is returned as problems.
// want is complete and has the form of the API server. Settle changes neither argument, but the result shares memory
// with both.
func Settle(pod *corev1.Pod, last *corev1.PodStatus, want corev1.PodStatus) (corev1.PodStatus, []error) {
	mayRunAgain := podutil.IsMirror(pod) // a static pod that was refused or ended by the node
	if podutil.IsTerminal(last.Phase) && !podutil.IsTerminal(want.Phase) && !mayRunAgain {
		return *last, []error{fmt.Errorf("phase %s after %s: %w", want.Phase, last.Phase, errPhaseBack)}
	}
	out := want
	problems := keepTerminated(pod, last, &out)
	out.Conditions = slices.Clone(out.Conditions)
	out.ObservedGeneration = max(out.ObservedGeneration, last.ObservedGeneration)
	for i := range out.Conditions {
		c := &out.Conditions[i]
		if old := podutil.Condition(last.Conditions, c.Type); old != nil {
			c.ObservedGeneration = max(c.ObservedGeneration, old.ObservedGeneration)
		}
	}
	return out, problems
}

// keepTerminated puts back the terminated status of containers that may never run again and yet are shown otherwise.
func keepTerminated(pod *corev1.Pod, last, out *corev1.PodStatus) (problems []error) {
	if pod.Spec.RestartPolicy == corev1.RestartPolicyAlways || podutil.RestartsAll(&pod.Spec) {
		return nil
	}
	out.ContainerStatuses = slices.Clone(out.ContainerStatuses)
	out.InitContainerStatuses = slices.Clone(out.InitContainerStatuses)
	for role, c := range podutil.Containers(&pod.Spec) {
		before, now := podutil.ContainerStatus(last, c.Name), podutil.ContainerStatus(out, c.Name)
		if role == podutil.RoleEphemeral || before == nil || now == nil || before.State.Terminated == nil ||
			now.State.Terminated != nil || podutil.ShouldRestart(&pod.Spec, c, role, before.State.Terminated.ExitCode) {
			continue
		}
		*now = *before
		problems = append(problems,
			fmt.Errorf("container %q has terminated and its restart policy allows no restart", c.Name))
	}
	return problems
}
