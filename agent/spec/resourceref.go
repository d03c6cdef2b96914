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

// ResourceField resolves a resourceFieldRef for an environment variable or a downward API volume: the resource of the
// container it names, or of c where it names none, in units of its divisor and rounded up. A limit the container does not
// have is the pod's limit, and failing that the node's allocatable resource. c may be nil if ref names a container.
func ResourceField(pod *corev1.Pod, c *corev1.Container, ref *corev1.ResourceFieldSelector,
	allocatable corev1.ResourceList) (string, error) {
	// As in the kubelet, an init container that is named (instead of meant by naming none) shows its own limits alone.
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
		return "", fmt.Errorf("resourceFieldRef %s names no container", ref.Resource)
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
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
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
