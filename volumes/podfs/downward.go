package podfs

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

func (c *content) downward(items []corev1.DownwardAPIVolumeFile) (payload, error) {
	files := payload{}
	var errs []error
	for _, item := range items {
		value, err := downwardValue(c.Request, item)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if err := files.set(item.Path, c.defaults.file(c.bytes(value), item.Mode, item.User)); err != nil {
			errs = append(errs, err)
		}
	}
	return files, utilerrors.NewAggregate(errs)
}

func downwardValue(r Request, item corev1.DownwardAPIVolumeFile) (string, error) {
	switch {
	case item.FieldRef != nil:
		return podutil.Field(r.Pod, item.FieldRef.FieldPath)
	case item.ResourceFieldRef != nil:
		role, c := podutil.Container(&r.Pod.Spec, item.ResourceFieldRef.ContainerName)
		if c == nil || role == podutil.RoleEphemeral {
			return "", fmt.Errorf("container %s not found", item.ResourceFieldRef.ContainerName)
		}
		return podutil.ResourceField(c, item.ResourceFieldRef, r.Allocatable)
	}
	return "", fmt.Errorf("downwardAPI file %q has neither fieldRef nor resourceFieldRef", item.Path)
}
