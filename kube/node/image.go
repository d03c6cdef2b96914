package node

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxNames bounds the names of one image in the status, as the kubelet does.
const maxNames = 5

// imageList returns status.images: the largest first, at most limit images (-1: all), five names each, digests first.
// The scheduler prefers nodes that have the images of a pod. An image without a name, as one whose tag has moved, is of
// no use to it, and the API wants names.
func imageList(images []*runtimeapi.Image, limit int) []corev1.ContainerImage {
	sorted := slices.DeleteFunc(slices.Clone(images), func(i *runtimeapi.Image) bool {
		return len(i.RepoDigests)+len(i.RepoTags) == 0
	})
	slices.SortStableFunc(sorted, func(a, b *runtimeapi.Image) int {
		// Digests give images of the same size a stable order.
		return cmp.Or(cmp.Compare(b.Size, a.Size), slices.Compare(a.RepoDigests, b.RepoDigests))
	})
	if limit >= 0 && len(sorted) > limit {
		sorted = sorted[:limit]
	}
	list := make([]corev1.ContainerImage, 0, len(sorted))
	for _, image := range sorted {
		names := slices.Concat(image.RepoDigests, image.RepoTags)
		list = append(list, corev1.ContainerImage{
			Names:     slices.Clip(names[:min(len(names), maxNames)]),
			SizeBytes: int64(image.Size),
		})
	}
	return list
}
