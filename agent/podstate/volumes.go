package podstate

import (
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Volumes iterates over the volumes to mount. Image volumes are not among them: their images come with those of the
// containers that mount them.
func (s *State) Volumes() iter.Seq[*corev1.Volume] {
	return func(yield func(*corev1.Volume) bool) {
		for v := range podutil.UsedVolumes(&s.Pod.Spec) {
			if v.Image == nil && !yield(v) {
				return
			}
		}
	}
}

// VolumesMounted reports whether this run of the agent has mounted all volumes of the pod.
func (s *State) VolumesMounted() bool {
	for v := range s.Volumes() {
		if _, mounted := s.Memory.Volume(v.Name); !mounted {
			return false
		}
	}
	return true
}

// Mounting reports whether a mount in flight is, or may be, that of a volume on the disk. While a volume is mounted for
// the first time, the name of its directory may be unknown: that of a PersistentVolume.
func (s *State) Mounting(onDisk string) bool {
	if s.Memory.InFlight(Mount{Volume: onDisk}.Key()) != nil {
		return true
	}
	if podutil.Volume(&s.Pod.Spec, onDisk) != nil {
		return false
	}
	return slices.ContainsFunc(s.Memory.Running(), func(step Step) bool {
		mount, is := step.(Mount)
		_, known := s.Memory.Volume(mount.Volume)
		return is && !known && !slices.Contains(s.VolumesOnDisk, mount.Volume)
	})
}

// Expiring returns a mounted volume with tokens or certificates, which have to be renewed as long as a container runs.
// When is not known of one that an earlier run of the agent has mounted: at once.
func (s *State) Expiring(name string) (v Volume, expires bool) {
	v, known := s.Memory.Volume(name)
	source := podutil.Volume(&s.Pod.Spec, name)
	return v, source != nil && source.Projected != nil &&
		(!v.RefreshAt.IsZero() || !known && slices.ContainsFunc(source.Projected.Sources, renewed))
}

func renewed(s corev1.VolumeProjection) bool {
	return s.ServiceAccountToken != nil || s.PodCertificate != nil
}

// PartStarts reports whether a container that mounts a part of a volume has been created and not started: a refresh of
// the volume would remove the part, so that the runtime could not mount it any more.
func (s *State) PartStarts(v *corev1.Volume) bool {
	return slices.ContainsFunc(s.Slots, func(slot *Slot) bool { return MountsPart(slot.Spec, v) && slot.starts() })
}

// starts reports whether an instance of a container is being created, or will start as it is.
func (s *Slot) starts() bool {
	if s.state.Memory.InFlight(CreateContainer{Name: s.Spec.Name}.Key()) != nil {
		return true
	}
	if !s.InCurrentSandbox || s.Last.State != ContainerCreated {
		return false
	}
	_, failed := s.state.Memory.Failure(StartContainer{ID: s.Last.ID}.Key())
	return !failed || s.state.Memory.Starting(s.Last.ID)
}

// MountsPart reports whether a container mounts a part of a volume whose files are all exchanged at a refresh.
func MountsPart(c *corev1.Container, v *corev1.Volume) bool {
	exchanged := v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
	return exchanged && slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
		return m.Name == v.Name && (m.SubPath != "" || m.SubPathExpr != "")
	})
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
