package main

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/kube/pods"
)

// tellProblems tells people of each new problem with a manifest by an event about the node, beside the log. What is
// wrong with the API server's own pods is no manifest's fault.
func (n *nodelet) tellProblems(before, now []pods.Problem) {
	for _, p := range now {
		if p.Source != pods.SourceAPI && !slices.Contains(before, p) {
			n.nodeEvent(corev1.EventTypeWarning, "BadManifest", p.String())
		}
	}
}
