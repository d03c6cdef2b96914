package pod

import (
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// UsedVolumes iterates over the volumes that containers mount or use as a device. No other volume of the spec is set
// up: its source need not exist.
func UsedVolumes(spec *corev1.PodSpec) iter.Seq[*corev1.Volume] {
	return func(yield func(*corev1.Volume) bool) {
		for i := range spec.Volumes {
			v := &spec.Volumes[i]
			mounted, device := VolumeUse(spec, v.Name)
			if (mounted || device) && !yield(v) {
				return
			}
		}
	}
}

// Volume returns the volume of that name; nil where the spec has none.
func Volume(spec *corev1.PodSpec, name string) *corev1.Volume {
	for i := range spec.Volumes {
		if spec.Volumes[i].Name == name {
			return &spec.Volumes[i]
		}
	}
	return nil
}

// VolumeUse reports whether containers mount a volume, and whether they use it as a device.
func VolumeUse(spec *corev1.PodSpec, volume string) (mounted, device bool) {
	for _, c := range Containers(spec) {
		mounted = mounted ||
			slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume })
		device = device ||
			slices.ContainsFunc(c.VolumeDevices, func(d corev1.VolumeDevice) bool { return d.Name == volume })
	}
	return mounted, device
}
