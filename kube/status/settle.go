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

// keepTerminated puts back the terminated status of containers that the API server accepts no other state of and yet
// are shown otherwise. It would refuse the whole status.
func keepTerminated(pod *corev1.Pod, last, out *corev1.PodStatus) (problems []error) {
	for role, c := range podutil.Containers(&pod.Spec) {
		before, now := podutil.ContainerStatus(last, c.Name), podutil.ContainerStatus(out, c.Name)
		if before == nil || now == nil || before.State.Terminated == nil || now.State.Terminated != nil ||
			mayLeaveTerminated(&pod.Spec, c, role, before.State.Terminated.ExitCode) {
			continue
		}
		if problems == nil {
			out.ContainerStatuses = slices.Clone(out.ContainerStatuses)
			out.InitContainerStatuses = slices.Clone(out.InitContainerStatuses)
			out.EphemeralContainerStatuses = slices.Clone(out.EphemeralContainerStatuses)
		}
		*podutil.ContainerStatus(out, c.Name) = *before
		problems = append(problems, fmt.Errorf("container %q has terminated for good", c.Name))
	}
	return problems
}

// mayLeaveTerminated reports whether the API server accepts another state of a container that has terminated with
// exitCode. For that, an init container restarts as an app container does: also when it has succeeded, if nothing but
// the pod's policy applies and that is Always.
func mayLeaveTerminated(spec *corev1.PodSpec, c *corev1.Container, role podutil.Role, exitCode int32) bool {
	if role == podutil.RoleEphemeral {
		return false
	}
	return podutil.RestartsAll(spec) || podutil.ShouldRestart(spec, c, podutil.RoleApp, exitCode)
}
