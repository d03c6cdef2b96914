package volumes

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/storage"
)

// Cluster reads and writes what the API server knows of volumes. It is *storage.Storage, where each method is
// described.
type Cluster interface {
	Claim(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (*storage.Claim, error)
	CheckAffinity(pv *corev1.PersistentVolume) error
	Driver(ctx context.Context, name string) (*storagev1.CSIDriver, error)
	Secret(ctx context.Context, namespace, name string) (map[string]string, error)
	Attached(ctx context.Context, pod types.UID, name corev1.UniqueVolumeName, driver, handle string) (
		storage.Attachment, error)
	AttachedInTree(ctx context.Context, pod types.UID, name corev1.UniqueVolumeName) error
	Growing(ctx context.Context, c *storage.Claim) error
	Grown(ctx context.Context, c *storage.Claim, size resource.Quantity) error
	NotGrown(ctx context.Context, c *storage.Claim, cause error, never bool) error
	LimitPeriod(ctx context.Context, driver string) (period time.Duration, changed <-chan struct{}, err error)
	SetDriver(ctx context.Context, d storage.NodeDriver) error
	RemoveDriver(ctx context.Context, name string) error
}

// noCluster is a node without an API server: it has no claims, and no controller attaches its volumes.
type noCluster struct{}

var errNoAPIServer = errors.New("this node has no API server")

func (noCluster) Claim(_ context.Context, _ *corev1.Pod, v *corev1.Volume) (*storage.Claim, error) {
	return nil, fmt.Errorf("read the PersistentVolumeClaim of volume %q: %w", v.Name, errNoAPIServer)
}

func (noCluster) CheckAffinity(*corev1.PersistentVolume) error { return nil }

func (noCluster) Driver(_ context.Context, name string) (*storagev1.CSIDriver, error) {
	return nil, fmt.Errorf("read CSIDriver %s: %w", name, errNoAPIServer)
}

func (noCluster) Secret(context.Context, string, string) (map[string]string, error) {
	return nil, errNoAPIServer
}

func (noCluster) Attached(context.Context, types.UID, corev1.UniqueVolumeName, string, string) (
	storage.Attachment, error) {
	return storage.Attachment{}, errNoAPIServer
}

func (noCluster) AttachedInTree(context.Context, types.UID, corev1.UniqueVolumeName) error {
	return nil
}

func (noCluster) Growing(context.Context, *storage.Claim) error { return errNoAPIServer }

func (noCluster) Grown(context.Context, *storage.Claim, resource.Quantity) error {
	return errNoAPIServer
}

func (noCluster) NotGrown(context.Context, *storage.Claim, error, bool) error { return errNoAPIServer }

func (noCluster) LimitPeriod(context.Context, string) (time.Duration, <-chan struct{}, error) {
	return 0, nil, nil
}

func (noCluster) SetDriver(context.Context, storage.NodeDriver) error { return nil }

func (noCluster) RemoveDriver(context.Context, string) error { return nil }
