package node

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Image is one image on the node. The scheduler prefers nodes that have the images of a pod.
type Image struct {
	Digests []string // name@sha256:…
	Tags    []string // name:tag
	Bytes   int64
}

// ImagesOf converts the images that the container runtime lists.
func ImagesOf(all []*runtimeapi.Image) []Image {
	list := make([]Image, 0, len(all))
	for _, i := range all {
		list = append(list, Image{Digests: i.RepoDigests, Tags: i.RepoTags, Bytes: int64(i.Size)})
	}
	return list
}

// maxNames bounds the names of one image in the status, as the kubelet does.
const maxNames = 5

// imageList returns status.images: the largest first, at most limit images (-1: all), five names each, digests first.
func imageList(images []Image, limit int) []corev1.ContainerImage {
	sorted := slices.Clone(images)
	slices.SortStableFunc(sorted, func(a, b Image) int {
		if c := cmp.Compare(b.Bytes, a.Bytes); c != 0 {
			return c
		}
		return slices.Compare(a.Digests, b.Digests) // a stable order for images of the same size
	})
	if limit >= 0 && len(sorted) > limit {
		sorted = sorted[:limit]
	}
	list := make([]corev1.ContainerImage, 0, len(sorted))
	for _, image := range sorted {
		names := slices.Concat(image.Digests, image.Tags)
		list = append(list, corev1.ContainerImage{
			Names:     slices.Clip(names[:min(len(names), maxNames)]),
			SizeBytes: image.Bytes,
		})
	}
	return list
}
