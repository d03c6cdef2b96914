package spec

import (
	"iter"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Kind tells which list of the pod spec a container comes from, and how it lives.
type Kind uint8

const (
	// Init containers run one after the other before the app containers.
	Init Kind = iota
	// Sidecar containers are init containers that keep running (restartPolicy Always).
	Sidecar
	// App containers are the spec's containers.
	App
	// Ephemeral containers join a running pod for debugging.
	Ephemeral
)

func (k Kind) String() string {
	switch k {
	case Init:
		return "init"
	case Sidecar:
		return "sidecar"
	case App:
		return "app"
	case Ephemeral:
		return "ephemeral"
	}
	return "unknown"
}

// Containers iterates over the containers of all kinds: init containers and sidecars in their order, then app
// containers, then ephemeral ones. A rule that holds for containers goes through this one iterator, so that no kind is
// forgotten. The containers are the pod's own; they must not be modified.
func Containers(pod *corev1.Pod) iter.Seq2[Kind, *corev1.Container] {
	return func(yield func(Kind, *corev1.Container) bool) {
		for i := range pod.Spec.InitContainers {
			c := &pod.Spec.InitContainers[i]
			kind := Init
			if podutil.Sidecar(c) {
				kind = Sidecar
			}
			if !yield(kind, c) {
				return
			}
		}
		for i := range pod.Spec.Containers {
			if !yield(App, &pod.Spec.Containers[i]) {
				return
			}
		}
		for i := range pod.Spec.EphemeralContainers {
			common := &pod.Spec.EphemeralContainers[i].EphemeralContainerCommon
			if !yield(Ephemeral, (*corev1.Container)(common)) {
				return
			}
		}
	}
}

// FindContainer returns the pod's container of that name, nil where there is none.
func FindContainer(pod *corev1.Pod, name string) (Kind, *corev1.Container) {
	for kind, c := range Containers(pod) {
		if c.Name == name {
			return kind, c
		}
	}
	return 0, nil
}

// ImageUse is one use a pod makes of an image.
type ImageUse struct {
	Image  string
	Policy corev1.PullPolicy
	// Container is the container that runs the image; empty for an image volume.
	Container string
	// Volume is the volume that shows the image's files; empty for a container.
	Volume string
}

// Images lists all uses the pod makes of images: those of containers of all kinds, then those of image volumes.
func Images(pod *corev1.Pod) []ImageUse {
	var uses []ImageUse
	for _, c := range Containers(pod) {
		uses = append(uses, ImageUse{Image: c.Image, Policy: c.ImagePullPolicy, Container: c.Name})
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Image != nil && v.Image.Reference != "" {
			uses = append(uses, ImageUse{Image: v.Image.Reference, Policy: v.Image.PullPolicy, Volume: v.Name})
		}
	}
	return uses
}
