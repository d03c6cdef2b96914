package podfs

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

// Supported returns an error if this agent cannot mount this kind of volume. It looks at nothing but the volume.
func Supported(vol *corev1.Volume) error {
	if err := supported(vol.VolumeSource); err != nil {
		return fmt.Errorf("volume %q: %w", vol.Name, err)
	}
	return nil
}

// External reports whether a volume needs more than this node's own files: a claim, a generic ephemeral volume, an
// inline CSI volume, an iSCSI LUN, or a volume of an in-tree kind that a CSI driver has replaced. This package does not
// mount it.
func External(vol *corev1.Volume) bool {
	return vol.PersistentVolumeClaim != nil || vol.Ephemeral != nil || vol.CSI != nil || vol.ISCSI != nil ||
		Replaced(vol.VolumeSource)
}

// Replaced reports whether a volume is of an in-tree kind whose volumes a CSI driver mounts as its own.
func Replaced(s corev1.VolumeSource) bool {
	return s.AWSElasticBlockStore != nil || s.AzureDisk != nil || s.AzureFile != nil || s.Cinder != nil ||
		s.GCEPersistentDisk != nil || s.PortworxVolume != nil || s.VsphereVolume != nil
}

func supported(s corev1.VolumeSource) error {
	switch {
	case s.GitRepo != nil:
		return fmt.Errorf("gitRepo is %w, because a repository's hooks would run as root on the node: "+
			"clone into an emptyDir from an init container instead", ErrUnsupported)
	case s.Projected != nil:
		return supportedSources(s.Projected.Sources)
	case s.PersistentVolumeClaim != nil, s.Ephemeral != nil, s.CSI != nil, s.NFS != nil, s.ISCSI != nil, Replaced(s):
		return nil
	case s.EmptyDir != nil, s.HostPath != nil, s.Image != nil, s.ConfigMap != nil, s.Secret != nil, s.DownwardAPI != nil:
		return nil
	}
	return unsupported(s)
}

// successors are the CSI drivers for in-tree kinds of volumes that cannot be translated into theirs.
var successors = map[string]string{
	"cephfs": "cephfs.csi.ceph.com",
	"rbd":    "rbd.csi.ceph.com",
}

// unsupported refuses a kind of volume, of a pod or a PersistentVolume, and names what to use in its place.
func unsupported(source any) error {
	kind := fieldSet(source)
	if driver := successors[kind]; driver != "" {
		return fmt.Errorf("kind %s is %w by this node agent: use a PersistentVolume of CSI driver %s",
			kind, ErrUnsupported, driver)
	}
	return fmt.Errorf("kind %s is %w by this node agent: use a PersistentVolume of a CSI driver for this storage",
		kind, ErrUnsupported)
}

func supportedSources(sources []corev1.VolumeProjection) error {
	for i, s := range sources {
		switch {
		case s.Secret != nil, s.ConfigMap != nil, s.DownwardAPI != nil, s.ServiceAccountToken != nil,
			s.ClusterTrustBundle != nil, s.PodCertificate != nil:
		default:
			return fmt.Errorf("projected source %d: kind %s is %w by this node agent", i, fieldSet(s), ErrUnsupported)
		}
	}
	return nil
}

// fieldSet returns the API name of the field that is set in a union such as VolumeSource, also of kinds for which this
// package has no code.
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
