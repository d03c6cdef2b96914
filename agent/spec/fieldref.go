package spec

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// fieldValue resolves a fieldRef of an environment variable.
func fieldValue(in *ContainerInput, ref *corev1.ObjectFieldSelector) (string, error) {
	if err := checkVersion(ref); err != nil {
		return "", err
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
		ips := SortPodIPs(in.Node.HostIPs, in.podIPs())
		if ref.FieldPath == "status.podIP" && len(ips) > 1 {
			ips = ips[:1]
		}
		return strings.Join(ips, ","), nil
	}
	return PodField(in.Pod, ref)
}

// PodField resolves a fieldRef to the pod's metadata: its name, namespace, uid, labels and annotations, or one label or
// annotation by key. Downward API volumes support only these fields; environment variables support more.
func PodField(pod *corev1.Pod, ref *corev1.ObjectFieldSelector) (string, error) {
	if err := checkVersion(ref); err != nil {
		return "", err
	}
	switch ref.FieldPath {
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
	path, key, ok := subscript(ref.FieldPath)
	if !ok {
		return "", fmt.Errorf("unsupported fieldPath: %v", ref.FieldPath)
	}
	values, checked := pod.Labels, key
	switch path {
	case "metadata.labels":
	case "metadata.annotations":
		values, checked = pod.Annotations, strings.ToLower(key)
	default:
		return "", fmt.Errorf("fieldPath %q does not support subscript", ref.FieldPath)
	}
	if msgs := validation.IsQualifiedName(checked); len(msgs) > 0 {
		return "", fmt.Errorf("invalid key subscript in %s: %s", ref.FieldPath, strings.Join(msgs, ";"))
	}
	return values[key], nil
}

func checkVersion(ref *corev1.ObjectFieldSelector) error {
	if ref.APIVersion != "v1" && ref.APIVersion != "" {
		return fmt.Errorf("unsupported pod version: %s", ref.APIVersion)
	}
	return nil
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
