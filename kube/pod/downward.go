package pod

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Field returns a field of the pod's metadata for the downward API: its name, namespace, uid, labels and annotations,
// or one label or annotation by key, such as metadata.labels['app'].
func Field(pod *corev1.Pod, path string) (string, error) {
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	}
	field, key, ok := subscript(path)
	if !ok {
		return "", fmt.Errorf("unsupported fieldPath: %v", path)
	}
	values, checked := pod.Labels, key
	switch field {
	case "metadata.labels":
	case "metadata.annotations":
		values, checked = pod.Annotations, strings.ToLower(key)
	default:
		return "", fmt.Errorf("fieldPath %q does not support subscript", path)
	}
	if msgs := validation.IsQualifiedName(checked); len(msgs) > 0 {
		return "", fmt.Errorf("invalid key subscript in %s: %s", path, strings.Join(msgs, ";"))
	}
	return values[key], nil
}

// subscript splits metadata.labels['key'] into metadata.labels and key.
func subscript(path string) (field, key string, ok bool) {
	path, ok = strings.CutSuffix(path, "']")
	if !ok {
		return "", "", false
	}
	field, key, ok = strings.Cut(path, "['")
	return field, key, ok && field != ""
}

// formatMap writes one key="value" per line, sorted by key.
func formatMap(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, key+"="+strconv.Quote(m[key]))
	}
	return strings.Join(lines, "\n")
}

// ResourceField returns a request or limit of a container for the downward API, in units of the divisor and rounded up.
// defaults has the limits of CPU, memory and ephemeral storage that apply if the container has none. Huge pages are
// never overcommitted, so they have no default.
func ResourceField(
	c *corev1.Container, ref *corev1.ResourceFieldSelector, defaults corev1.ResourceList) (string, error) {
	kind, text, _ := strings.Cut(ref.Resource, ".")
	name := corev1.ResourceName(text)
	plain := name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage
	if !plain && !IsHugePages(name) {
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	var q resource.Quantity
	switch kind {
	case "requests":
		q = c.Resources.Requests[name]
	case "limits":
		if q = c.Resources.Limits[name]; q.IsZero() && plain {
			q = defaults[name]
		}
	default:
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	return inUnits(q, ref.Divisor, name), nil
}

func inUnits(q, divisor resource.Quantity, name corev1.ResourceName) string {
	if divisor.Sign() <= 0 {
		divisor = resource.MustParse("1")
	}
	value, unit := amount(q, name), amount(divisor, name)
	units := value / unit
	if value%unit > 0 {
		units++
	}
	return strconv.FormatInt(units, 10)
}
