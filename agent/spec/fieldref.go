package spec

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// fieldValue resolves a fieldRef of an environment variable.
func fieldValue(in *ContainerInput, ref *corev1.ObjectFieldSelector) (string, error) {
	if ref.APIVersion != "v1" && ref.APIVersion != "" {
		return "", fmt.Errorf("unsupported pod version: %s", ref.APIVersion)
	}
	switch ref.FieldPath {
	case "spec.nodeName", "spec.host":
		return in.Pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return in.Pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs":
		if len(in.Node.HostIPs) == 0 {
			return "", errors.New("host IP unknown; the node has no address yet")
		}
		if ref.FieldPath == "status.hostIP" {
			return in.Node.HostIPs[0], nil
		}
		return strings.Join(in.Node.HostIPs, ","), nil
	case "status.podIP", "status.podIPs":
		ips := podutil.SortIPs(in.podIPs(), in.Node.IPv6First)
		if ref.FieldPath == "status.podIP" && len(ips) > 1 {
			ips = ips[:1]
		}
		return strings.Join(ips, ","), nil
	}
	return podutil.Field(in.Pod, ref.FieldPath)
}

// resourceFieldValue resolves a resourceFieldRef of an environment variable: a resource of the container that ref
// names, or of the variable's own. As in the kubelet, an init container that ref names has no default limits.
func resourceFieldValue(in *ContainerInput, ref *corev1.ResourceFieldSelector) (string, error) {
	defaults := defaultLimits(in.Pod, in.Node.Allocatable)
	if ref.ContainerName == "" {
		return podutil.ResourceField(in.Container, ref, defaults)
	}
	role, c := podutil.Container(&in.Pod.Spec, ref.ContainerName)
	if c == nil || role == podutil.RoleEphemeral {
		return "", fmt.Errorf("container %s not found", ref.ContainerName)
	}
	if role != podutil.RoleApp {
		defaults = nil
	}
	return podutil.ResourceField(c, ref, defaults)
}

// defaultLimits returns the limits of a container that has none: the pod's limits for CPU and memory, and else what the
// node can allocate.
func defaultLimits(pod *corev1.Pod, allocatable corev1.ResourceList) corev1.ResourceList {
	if pod.Spec.Resources == nil {
		return allocatable
	}
	out := maps.Clone(allocatable)
	for _, name := range podutil.ComputeResources {
		limit := pod.Spec.Resources.Limits[name]
		if _, known := allocatable[name]; known && !limit.IsZero() {
			out[name] = limit
		}
	}
	return out
}
