package pod

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// IsHugePages reports whether a resource is huge pages of a size, such as hugepages-2Mi.
func IsHugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// HugePages returns the resource of a page size in bytes.
func HugePages(size int64) corev1.ResourceName {
	return corev1.ResourceName(corev1.ResourceHugePagesPrefix + resource.NewQuantity(size, resource.BinarySI).String())
}

// HugePageSize returns the page size in bytes of a resource such as hugepages-2Mi, and false for other resources.
func HugePageSize(name corev1.ResourceName) (int64, bool) {
	text, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
	if !ok {
		return 0, false
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Value() <= 0 {
		return 0, false
	}
	return q.Value(), true
}
