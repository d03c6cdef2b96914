package main

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/kube/pods"
)

// tellProblems tells people of each new problem with a manifest by an event about the node, beside the log.
func (n *nodelet) tellProblems(before, now []pods.Problem) {
	for _, p := range now {
		if !slices.Contains(before, p) {
			n.nodeEvent(corev1.EventTypeWarning, "BadManifest", p.String())
		}
	}
}
