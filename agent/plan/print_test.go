package plan

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// conditionsText returns the conditions in one line: those that are True by name, the others with a "!" and their
// reason.
func conditionsText(all []corev1.PodCondition) string {
	var words []string
	for _, c := range all {
		word := string(c.Type)
		if c.Status != corev1.ConditionTrue {
			word = "!" + word
		}
		if c.Reason != "" && c.Type != corev1.PodReadyToStartContainers { // TestReadyToStart checks that reason
			word += "(" + strings.TrimSuffix(c.Reason+": "+c.Message, ": ") + ")"
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func stateText(s corev1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Waiting != nil:
		return strings.TrimSpace("waiting " + withMessage(s.Waiting.Reason, s.Waiting.Message))
	case s.Terminated != nil:
		return strings.TrimSpace(fmt.Sprintf("exit %d %s", s.Terminated.ExitCode,
			withMessage(s.Terminated.Reason, s.Terminated.Message)))
	}
	return "nothing"
}

func withMessage(reason, message string) string {
	if message == "" {
		return reason
	}
	return fmt.Sprintf("%s %q", reason, message)
}

// containerText returns one container status in one line. The end of the container normally has its ID, or none.
func containerText(c corev1.ContainerStatus) string {
	words := []string{c.Name + ": " + stateText(c.State)}
	if end := c.State.Terminated; end != nil && end.ContainerID != "" && end.ContainerID != c.ContainerID {
		words = append(words, "of "+end.ContainerID)
	}
	if c.Ready {
		words = append(words, "ready")
	}
	if c.Started != nil && *c.Started {
		words = append(words, "started")
	}
	if c.RestartCount > 0 {
		words = append(words, fmt.Sprint("restarts ", c.RestartCount))
	}
	if c.LastTerminationState != (corev1.ContainerState{}) {
		words = append(words, "last "+stateText(c.LastTerminationState))
	}
	return strings.Join(words, ", ")
}

// statusText returns a status in a few lines.
func statusText(st *corev1.PodStatus) string {
	lines := []string{strings.TrimSpace(string(st.Phase) + " " + withMessage(st.Reason, st.Message)),
		conditionsText(st.Conditions)}
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses,
		st.EphemeralContainerStatuses} {
		for _, c := range list {
			lines = append(lines, containerText(c))
		}
	}
	return strings.Join(lines, "\n")
}
