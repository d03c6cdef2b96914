package eviction

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// The signals of an overrun, which count among the evictions under the kubelet's names.
const (
	EmptyDirLimit  = "emptydirfs.limit"
	PodLimit       = "ephemeralpodfs.limit"
	ContainerLimit = "ephemeralcontainerfs.limit"
)

// Storage is what a pod takes of the node's disk, in bytes. What has not been measured yet is left out.
type Storage struct {
	// Pod is everything: the layers and logs of its containers, and its volumes on the disk.
	Pod int64
	// Containers is the log of each container and, where it lies on the same file system, its writable layer.
	Containers map[string]int64
	// Volumes is what each volume on the disk holds, by its name in the pod.
	Volumes map[string]int64
}

// Overrun is a limit of local storage that a pod has exceeded.
type Overrun struct {
	// Signal is one of EmptyDirLimit, PodLimit and ContainerLimit.
	Signal string
	// Message is for people, in the kubelet's words.
	Message string
}

// LimitsStorage: the pod, or a volume of it, has a limit that must be watched. An emptyDir in memory has one that the kernel keeps.
func LimitsStorage(pod *corev1.Pod) bool {
	return len(limitedEmptyDirs(pod)) > 0 || LimitsContainers(pod)
}

// LimitsContainers: a container of the pod has a limit of ephemeral storage, so that layers and logs must be measured.
func LimitsContainers(pod *corev1.Pod) bool {
	_, limited := podLimit(pod)
	return limited
}

// podLimit is the sum of the containers' limits of ephemeral storage.
func podLimit(pod *corev1.Pod) (limit resource.Quantity, limited bool) {
	limit, limited = resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})[corev1.ResourceEphemeralStorage]
	return limit, limited
}

func limitedEmptyDirs(pod *corev1.Pod) (all []*corev1.Volume) {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if e := v.EmptyDir; e != nil && e.Medium == corev1.StorageMediumDefault && e.SizeLimit != nil && e.SizeLimit.Sign() > 0 {
			all = append(all, v)
		}
	}
	return all
}

// Exceeded gives the limit that a pod has exceeded, nil where it keeps them all: those of its emptyDirs come first, then the sum of
// its containers' limits, then each container's own. Critical pods may exceed them.
func Exceeded(pod *corev1.Pod, use Storage) *Overrun {
	if podutil.IsCritical(pod) {
		return nil
	}
	for _, v := range limitedEmptyDirs(pod) {
		if limit := v.EmptyDir.SizeLimit; use.Volumes[v.Name] > limit.Value() {
			return &Overrun{EmptyDirLimit, fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, limit.String())}
		}
	}
	if limit, limited := podLimit(pod); limited && use.Pod > limit.Value() {
		return &Overrun{PodLimit, fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if limit := c.Resources.Limits.StorageEphemeral(); !limit.IsZero() && use.Containers[c.Name] > limit.Value() {
			return &Overrun{ContainerLimit, fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String())}
		}
	}
	return nil
}
