package policy

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// The signals of limits; evictions are counted by these names of the kubelet.
const (
	EmptyDirLimit  = "emptydirfs.limit"
	PodLimit       = "ephemeralpodfs.limit"
	ContainerLimit = "ephemeralcontainerfs.limit"
)

// Storage is what a pod takes of the node's disk, in bytes. What has not been measured yet is missing.
type Storage struct {
	// Pod is the total: layers and logs of the containers, volumes on the disk, and the files that the agent makes for it.
	Pod int64
	// Containers is the log and the writable layer of each container.
	Containers map[string]int64
	// Volumes is what each volume on the disk holds, by its name in the pod.
	Volumes map[string]int64
}

// Overrun is a limit of local storage that a pod has exceeded.
type Overrun struct {
	// Signal is one of EmptyDirLimit, PodLimit and ContainerLimit.
	Signal string
	// Message is the status message, in the kubelet's words.
	Message string
}

// LimitsStorage reports whether the pod or one of its volumes has a limit of local storage. The kernel enforces that of
// an emptyDir in memory or huge pages.
func LimitsStorage(pod *corev1.Pod) bool {
	return len(limitedEmptyDirs(pod)) > 0 || LimitsContainers(pod)
}

// LimitsContainers reports whether a container of the pod has a limit of ephemeral storage, so that layers must be
// measured.
func LimitsContainers(pod *corev1.Pod) bool {
	for _, c := range podutil.ContainersWithResources(&pod.Spec) {
		if _, limited := c.Resources.Limits[corev1.ResourceEphemeralStorage]; limited {
			return true
		}
	}
	return false
}

// podLimit is the sum of the containers' limits of ephemeral storage.
func podLimit(pod *corev1.Pod) (limit resource.Quantity, limited bool) {
	limit, limited = resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})[corev1.ResourceEphemeralStorage]
	return limit, limited
}

func limitedEmptyDirs(pod *corev1.Pod) (all []*corev1.Volume) {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		e := v.EmptyDir
		onDisk := e != nil && e.Medium == corev1.StorageMediumDefault
		if onDisk && e.SizeLimit != nil && e.SizeLimit.Sign() > 0 {
			all = append(all, v)
		}
	}
	return all
}

// Exceeded returns the limit that a pod exceeds; nil if it exceeds none. The limits of its emptyDirs come first, then
// the sum of its containers' limits, then that of each container. Critical pods may exceed theirs.
func Exceeded(pod *corev1.Pod, use Storage) *Overrun {
	if podutil.IsCritical(pod) {
		return nil
	}
	for _, v := range limitedEmptyDirs(pod) {
		if limit := v.EmptyDir.SizeLimit; limit.CmpInt64(use.Volumes[v.Name]) < 0 {
			return overrun(EmptyDirLimit, "Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, limit.String())
		}
	}
	if limit, limited := podLimit(pod); limited && limit.CmpInt64(use.Pod) < 0 {
		return overrun(PodLimit, "Pod ephemeral local storage usage exceeds the total limit of containers %s. ",
			limit.String())
	}
	for _, c := range podutil.AppsAndSidecars(&pod.Spec) {
		limit := c.Resources.Limits.StorageEphemeral()
		if !limit.IsZero() && limit.CmpInt64(use.Containers[c.Name]) < 0 {
			return overrun(ContainerLimit, "Container %s exceeded its local ephemeral storage limit %q. ",
				c.Name, limit.String())
		}
	}
	return nil
}

func overrun(signal, format string, args ...any) *Overrun {
	return &Overrun{Signal: signal, Message: fmt.Sprintf(format, args...)}
}
