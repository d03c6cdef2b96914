package podfs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

func (v *FS) mountDownwardAPI(ctx context.Context, r Request, s *corev1.DownwardAPIVolumeSource) (Mounted, error) {
	files, err := downwardFiles(r, s.Items, fileMode(s.DefaultMode))
	if err != nil {
		return Mounted{}, err
	}
	return v.show(ctx, r, pluginDownwardAPI, files)
}

func downwardFiles(r Request, items []corev1.DownwardAPIVolumeFile, mode uint32) (payload, error) {
	files := payload{}
	var errs []error
	for _, item := range items {
		value, err := downwardValue(r, item)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		f := file{data: []byte(value), mode: mode}
		if item.Mode != nil {
			f.mode = uint32(*item.Mode)
		}
		if err := files.set(item.Path, f); err != nil {
			errs = append(errs, err)
		}
	}
	return files, utilerrors.NewAggregate(errs)
}

func downwardValue(r Request, item corev1.DownwardAPIVolumeFile) (string, error) {
	switch {
	case item.FieldRef != nil:
		return podField(r.Pod, item.FieldRef.FieldPath)
	case item.ResourceFieldRef != nil:
		return resourceField(r.Pod, item.ResourceFieldRef, r.Allocatable)
	}
	return "", fmt.Errorf("downwardAPI file %q has neither fieldRef nor resourceFieldRef", item.Path)
}

// podField gives a field as a volume may show it: of the metadata only. IPs are not among them, as they come too
// late.
func podField(pod *corev1.Pod, path string) (string, error) {
	if field, key, ok := subscript(path); ok {
		return podKey(pod, path, field, key)
	}
	switch path {
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %v", path)
}

func podKey(pod *corev1.Pod, path, field, key string) (string, error) {
	var values map[string]string
	name := key
	switch field {
	case "metadata.annotations":
		values, name = pod.Annotations, strings.ToLower(key)
	case "metadata.labels":
		values = pod.Labels
	default:
		return "", fmt.Errorf("fieldPath %q does not support subscript", path)
	}
	if problems := validation.IsQualifiedName(name); len(problems) > 0 {
		return "", fmt.Errorf("invalid key subscript in %s: %s", path, strings.Join(problems, ";"))
	}
	return values[key], nil
}

// subscript splits "metadata.labels['key']" into "metadata.labels" and "key".
func subscript(path string) (field, key string, ok bool) {
	rest, ok := strings.CutSuffix(path, "']")
	if !ok {
		return "", "", false
	}
	field, key, ok = strings.Cut(rest, "['")
	return field, key, ok && field != ""
}

// formatMap gives one key="value" line for each key, sorted.
func formatMap(m map[string]string) string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, key+"="+strconv.Quote(m[key]))
	}
	return strings.Join(lines, "\n")
}

// resourceField gives a container's request or limit in units of the divisor, rounded up. A limit that is not set
// is what the node can allocate.
func resourceField(pod *corev1.Pod, ref *corev1.ResourceFieldSelector, allocatable corev1.ResourceList) (
	string, error) {
	role, c := podutil.Container(&pod.Spec, ref.ContainerName)
	if c == nil || role == podutil.RoleEphemeral {
		return "", fmt.Errorf("container %s not found", ref.ContainerName)
	}
	kind, name, _ := strings.Cut(ref.Resource, ".")
	resourceName := corev1.ResourceName(name)
	hugePages := strings.HasPrefix(name, corev1.ResourceHugePagesPrefix)
	switch resourceName {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
	default:
		if !hugePages {
			return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
		}
	}
	var q resource.Quantity
	switch kind {
	case "requests":
		q = c.Resources.Requests[resourceName]
	case "limits":
		q = c.Resources.Limits[resourceName]
		if q.IsZero() && !hugePages { // huge pages are never overcommitted: no limit is none
			q = allocatable[resourceName]
		}
	default:
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	return inUnitsOf(ref.Divisor, q, resourceName), nil
}

func inUnitsOf(divisor, q resource.Quantity, name corev1.ResourceName) string {
	if divisor.Sign() <= 0 {
		divisor = *resource.NewQuantity(1, resource.DecimalSI)
	}
	value, unit := q.Value(), divisor.Value()
	if name == corev1.ResourceCPU {
		value, unit = q.MilliValue(), divisor.MilliValue()
	}
	units := value / unit
	if value%unit > 0 {
		units++
	}
	return strconv.FormatInt(units, 10)
}
