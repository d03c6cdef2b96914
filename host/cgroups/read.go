package cgroups

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
)

// PodsCgroup is the cgroup of all pods, kubepods, as a path below the root of the hierarchy.
func (t *Tree) PodsCgroup() string { return t.spell(t.pods) }

// ClassCgroups are those of the classes burstable and besteffort.
func (t *Tree) ClassCgroups() []string {
	return []string{t.spell(t.pods.Class(corev1.PodQOSBurstable)), t.spell(t.pods.Class(corev1.PodQOSBestEffort))}
}

// Mounts are the directories in which the controllers of cgroup v1 are mounted; nil on v2.
func (t *Tree) Mounts() map[string]string { return maps.Clone(t.mounts) }
