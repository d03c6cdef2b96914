package spec

import (
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

func resourceFieldValue(in *ContainerInput, ref *corev1.ResourceFieldSelector) (string, error) {
	return ResourceField(in.Pod, in.Container, ref, in.Node.Allocatable)
}

// ResourceField resolves a resourceFieldRef of an environment variable or a downward API volume. It returns the
// resource of the container that ref names, or of c if it names none, in units of the divisor and rounded up. If the
// container has no limit, the value is the pod's limit, or the node's allocatable resource if the pod has none
// either. c may be nil if ref names a container.
func ResourceField(pod *corev1.Pod, c *corev1.Container, ref *corev1.ResourceFieldSelector,
	allocatable corev1.ResourceList) (string, error) {
	// As in the kubelet, these defaults do not apply to an init container that ref names.
	useDefaults := true
	if ref.ContainerName != "" {
		var role podutil.Role
		role, c = podutil.Container(&pod.Spec, ref.ContainerName)
		if c == nil || role == podutil.RoleEphemeral {
			return "", fmt.Errorf("container %s not found", ref.ContainerName)
		}
		useDefaults = role == podutil.RoleApp
	}
	if c == nil {
		return "", fmt.Errorf("resourceFieldRef %s: containerName is not set", ref.Resource)
	}
	limits := c.Resources.Limits
	if useDefaults {
		limits = withDefaultLimits(pod, limits, allocatable)
	}
	return resourceText(ref, limits, c.Resources.Requests)
}

func withDefaultLimits(pod *corev1.Pod, limits, allocatable corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	maps.Copy(out, limits)
	for _, name := range append(podutil.ComputeResources[:], corev1.ResourceEphemeralStorage) {
		if q := out[name]; !q.IsZero() {
			continue
		}
		value, ok := allocatable[name]
		if !ok {
			continue
		}
		if r := pod.Spec.Resources; r != nil && name != corev1.ResourceEphemeralStorage {
			if limit := r.Limits[name]; !limit.IsZero() {
				value = limit
			}
		}
		out[name] = value
	}
	return out
}

func resourceText(ref *corev1.ResourceFieldSelector, limits, requests corev1.ResourceList) (string, error) {
	list := limits
	text, ok := strings.CutPrefix(ref.Resource, "limits.")
	if !ok {
		list = requests
		text, ok = strings.CutPrefix(ref.Resource, "requests.")
	}
	name := corev1.ResourceName(text)
	known := name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage ||
		strings.HasPrefix(text, corev1.ResourceHugePagesPrefix)
	if !ok || !known {
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	q := list[name]
	value, unit := float64(q.Value()), float64(divisor.Value())
	if name == corev1.ResourceCPU {
		value, unit = float64(q.MilliValue()), float64(divisor.MilliValue())
	}
	return strconv.FormatInt(int64(math.Ceil(value/unit)), 10), nil
}
