// Package pod answers questions about the spec of a pod that several rooms ask. It is pure: it sees API types alone, owns nothing, and
// whoever has a pod may call it.
package pod

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Sidecar tells whether an init container runs on beside the others (KEP-753).
func Sidecar(init *corev1.Container) bool {
	return init.RestartPolicy != nil && *init.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// RestartsAll: the exit of a container may ask for all containers to start anew (KEP-5532).
func RestartsAll(spec *corev1.PodSpec) bool {
	restarts := func(c corev1.Container) bool {
		return slices.ContainsFunc(c.RestartPolicyRules, func(r corev1.ContainerRestartRule) bool {
			return r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
		})
	}
	return slices.ContainsFunc(spec.InitContainers, restarts) || slices.ContainsFunc(spec.Containers, restarts)
}
