package podfs

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

const hugePagesPrefix = string(corev1.StorageMediumHugePagesPrefix)

// mediumFS returns the file system for a medium; nil means a plain directory on the node's disk.
func (v *FS) mediumFS(r Request, s *corev1.EmptyDirVolumeSource) (*memoryFS, error) {
	switch {
	case s.Medium == corev1.StorageMediumDefault:
		return nil, nil
	case s.Medium == corev1.StorageMediumMemory:
		return v.tmpfs(memorySize(r.Pod, r.Allocatable, s.SizeLimit)), nil
	case s.Medium == corev1.StorageMediumHugePages, strings.HasPrefix(string(s.Medium), hugePagesPrefix):
		size, err := hugePageSize(s.Medium, &r.Pod.Spec)
		if err != nil {
			return nil, err
		}
		options := fmt.Sprintf("pagesize=%d", size)
		if limit := limitOf(s.SizeLimit); limit > 0 {
			options += fmt.Sprintf(",size=%d", limit) // of which the kernel counts the whole pages
		}
		return &memoryFS{fstype: "hugetlbfs", magic: unix.HUGETLBFS_MAGIC, options: options, pageSize: size}, nil
	}
	return nil, fmt.Errorf("unknown storage medium %q", s.Medium)
}

func (v *FS) tmpfs(size int64) *memoryFS {
	return &memoryFS{fstype: "tmpfs", magic: unix.TMPFS_MAGIC, options: v.tmpfsOptions(size)}
}

// memorySize returns the size of a tmpfs in bytes: the smallest of what the node can allocate, the pod's memory limit,
// and the volume's sizeLimit. 0 means that there is no limit.
func memorySize(pod *corev1.Pod, allocatable corev1.ResourceList, sizeLimit *resource.Quantity) int64 {
	size := allocatable.Memory().Value()
	bound := func(limit int64) {
		if limit > 0 && (size <= 0 || limit < size) {
			size = limit
		}
	}
	bound(podMemoryLimit(pod))
	bound(limitOf(sizeLimit))
	return max(size, 0)
}

// limitOf returns a sizeLimit in bytes, or 0 if there is none.
func limitOf(sizeLimit *resource.Quantity) int64 {
	if sizeLimit == nil {
		return 0
	}
	const storage = corev1.ResourceEphemeralStorage
	return podutil.Amount(corev1.ResourceList{storage: *sizeLimit}, storage)
}

// podMemoryLimit returns the limit of the pod's memory cgroup, or 0 if it has none.
func podMemoryLimit(pod *corev1.Pod) int64 {
	if !podutil.Limits(&pod.Spec, corev1.ResourceMemory) {
		return 0
	}
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	return podutil.Amount(limits, corev1.ResourceMemory)
}

// hugePageSize returns the page size in bytes on which the pod's requests and the medium agree.
func hugePageSize(medium corev1.StorageMedium, spec *corev1.PodSpec) (int64, error) {
	want := int64(0) // any
	if suffix, ok := strings.CutPrefix(string(medium), hugePagesPrefix); ok {
		q, err := resource.ParseQuantity(suffix)
		if err != nil || q.Value() <= 0 {
			return 0, fmt.Errorf("medium %q does not name a page size such as HugePages-2Mi", medium)
		}
		want = q.Value()
	}
	found := int64(0)
	for _, size := range hugePageRequests(spec) {
		if want != 0 && size != want {
			continue
		}
		if found != 0 && found != size {
			return 0, fmt.Errorf("medium %q is ambiguous, because the pod requests huge pages of several sizes: "+
				"name one, such as HugePages-2Mi", medium)
		}
		found = size
	}
	if found == 0 {
		return 0, fmt.Errorf("medium %q needs a request of huge pages in some container of the pod", medium)
	}
	return found, nil
}

// hugePageRequests returns the page sizes that a pod requests. A size may be there several times.
func hugePageRequests(spec *corev1.PodSpec) (sizes []int64) {
	var lists []corev1.ResourceList
	if spec.Resources != nil {
		lists = append(lists, spec.Resources.Requests)
	}
	for _, c := range podutil.Containers(spec) {
		lists = append(lists, c.Resources.Requests)
	}
	for _, list := range lists {
		for name := range list {
			if size, ok := podutil.HugePageSize(name); ok {
				sizes = append(sizes, size)
			}
		}
	}
	return sizes
}
