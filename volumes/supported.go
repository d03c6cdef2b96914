package volumes

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// ErrUnsupported is in the chain of every error about a kind of volume that this node agent cannot set up: trying
// again does not help.
var ErrUnsupported = errors.New("unsupported")

// Supported says whether Mount can set up this kind of volume. It looks at nothing but the volume.
func Supported(vol *corev1.Volume) error {
	if err := supported(vol.VolumeSource); err != nil {
		return fmt.Errorf("volume %q: %w", vol.Name, err)
	}
	return nil
}

func supported(s corev1.VolumeSource) error {
	switch {
	case s.GitRepo != nil:
		return fmt.Errorf("gitRepo is %w, because a repository's hooks would run as root on the node: "+
			"clone into an emptyDir from an init container instead", ErrUnsupported)
	case s.Projected != nil:
		return supportedSources(s.Projected.Sources)
	case s.EmptyDir != nil, s.HostPath != nil, s.Image != nil, s.ConfigMap != nil, s.Secret != nil, s.DownwardAPI != nil:
		return nil
	}
	return fmt.Errorf("kind %s is %w by this node agent", fieldSet(s), ErrUnsupported)
}

func supportedSources(sources []corev1.VolumeProjection) error {
	for i, s := range sources {
		switch {
		case s.Secret != nil, s.ConfigMap != nil, s.DownwardAPI != nil, s.ServiceAccountToken != nil:
		default:
			return fmt.Errorf("projected source %d: kind %s is %w by this node agent", i, fieldSet(s), ErrUnsupported)
		}
	}
	return nil
}

// fieldSet gives the API name of the one field that is set in a union such as VolumeSource, also of kinds which this
// package has no code for.
func fieldSet(union any) string {
	v := reflect.ValueOf(union)
	for i := range v.NumField() {
		if !v.Field(i).IsZero() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			return name
		}
	}
	return "(none known to this version)"
}
