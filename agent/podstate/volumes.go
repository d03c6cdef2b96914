package podstate

import (
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Volumes iterates over the names of the volumes to mount. Image volumes are not among them: their images come with
// those of the containers that mount them.
func (s *State) Volumes() iter.Seq[string] {
	return func(yield func(string) bool) {
		for v := range podutil.UsedVolumes(&s.Pod.Spec) {
			if v.Image == nil && !yield(v.Name) {
				return
			}
		}
	}
}

// VolumesMounted reports whether this run of the agent has mounted all volumes of the pod.
func (s *State) VolumesMounted() bool {
	for name := range s.Volumes() {
		if _, mounted := s.Memory.Volume(name); !mounted {
			return false
		}
	}
	return true
}

// Expiring returns a mounted volume with tokens or certificates, which have to be renewed as long as a container runs.
func (s *State) Expiring(name string) (v Volume, expires bool) {
	v, _ = s.Memory.Volume(name)
	projected := func(v corev1.Volume) bool { return v.Name == name && v.Projected != nil }
	return v, !v.RefreshAt.IsZero() && slices.ContainsFunc(s.Pod.Spec.Volumes, projected)
}

// ImageVolumes yields the image volumes that a container mounts.
func ImageVolumes(pod *corev1.Pod, c *corev1.Container) iter.Seq[*corev1.Volume] {
	return func(yield func(*corev1.Volume) bool) {
		for i := range pod.Spec.Volumes {
			vol := &pod.Spec.Volumes[i]
			mounted := func(m corev1.VolumeMount) bool { return m.Name == vol.Name }
			if vol.Image != nil && slices.ContainsFunc(c.VolumeMounts, mounted) && !yield(vol) {
				return
			}
		}
	}
}
