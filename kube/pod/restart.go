package pod

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// ShouldRestart reports whether a container that exited by itself with exitCode is to be run again: by the
// first of its restart rules that matches (KEP-5307), else by the policy in force.
func ShouldRestart(spec *corev1.PodSpec, c *corev1.Container, role Role, exitCode int32) bool {
	if rule := RestartRule(c, exitCode); rule != nil {
		switch rule.Action {
		case corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers:
			return true
		} // an unknown action leaves it to the policy
	}
	switch RestartPolicy(spec, c, role) {
	case corev1.RestartPolicyAlways:
		return true
	case corev1.RestartPolicyOnFailure:
		return exitCode != 0
	}
	return false
}

// InitFailed reports whether an init container has failed that ended with exitCode and reason, as the runtime gives it.
// If one of its processes was killed for lack of memory, its work may be half done, whatever its exit code is.
func InitFailed(exitCode int32, reason string) bool { return exitCode != 0 || reason == "OOMKilled" }

// RestartPolicy is the policy in force for one container: its own where it has one, else the pod's. An init
// container that is no sidecar restarts on failure alone where the pod's policy is Always. An ephemeral container never
// restarts.
func RestartPolicy(spec *corev1.PodSpec, c *corev1.Container, role Role) corev1.RestartPolicy {
	policy := spec.RestartPolicy
	if c.RestartPolicy != nil {
		policy = corev1.RestartPolicy(*c.RestartPolicy)
	}
	switch {
	case role == RoleEphemeral:
		return corev1.RestartPolicyNever
	case role == RoleInit && policy == corev1.RestartPolicyAlways:
		return corev1.RestartPolicyOnFailure
	}
	return policy
}

// RestartRule is the first of a container's restart rules that matches exitCode; nil where none does.
func RestartRule(c *corev1.Container, exitCode int32) *corev1.ContainerRestartRule {
	for i := range c.RestartPolicyRules {
		if rule := &c.RestartPolicyRules[i]; matches(rule.ExitCodes, exitCode) {
			return rule
		}
	}
	return nil
}

func matches(codes *corev1.ContainerRestartRuleOnExitCodes, exitCode int32) bool {
	if codes == nil {
		return false
	}
	return slices.Contains(codes.Values, exitCode) != (codes.Operator == corev1.ContainerRestartRuleOnExitCodesOpNotIn)
}

// RestartsAll reports whether a restart rule of the pod can ask for a restart of all its containers (KEP-5532).
func RestartsAll(spec *corev1.PodSpec) bool {
	for _, c := range Containers(spec) {
		if slices.ContainsFunc(c.RestartPolicyRules, func(r corev1.ContainerRestartRule) bool {
			return r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
		}) {
			return true
		}
	}
	return false
}
