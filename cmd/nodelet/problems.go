package main

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/kube/pods"
)

// reportProblems records an event about the node for each new problem with a manifest.
func (n *nodelet) reportProblems(before, now []pods.Problem) {
	for _, p := range now {
		if p.Source != pods.SourceAPI && !slices.Contains(before, p) {
			n.nodeEvent(corev1.EventTypeWarning, "BadManifest", p.String())
		}
	}
}
