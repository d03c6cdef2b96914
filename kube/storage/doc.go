// Package storage reads and writes what the API server knows of volumes: claims and PersistentVolumes, VolumeAttachments,
// CSIDrivers, this node's CSINode, the sizes of expanded claims.
//
// A node may read claims, PersistentVolumes and VolumeAttachments only one by one, and only those of its pods; it may not
// watch them. So waits for an attachment hang on the watch of the Node object, whose status the controller manager fills in.
// CSIDrivers are watched, from the first volume that needs one on.
//
// It never touches the disk or a driver, and never decides when a pod needs a volume. The agent calls it, each step in its
// own goroutine; Run keeps the CSINode in order. It keeps nothing that a crash could lose.
package storage

import (
	"context"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/kube/client"
)

// Config says where the objects are.
type Config struct {
	// Core and Storage speak to /api/v1 and /apis/storage.k8s.io/v1.
	Core, Storage rest.Interface
	NodeName      string
	// ControllerAttaches: volumes are attached by the controller manager (enableControllerAttachDetach).
	ControllerAttaches bool
	// Node gives the newest version of the Node object that was seen. NodeSeen says that there is a newer one.
	Node func() *corev1.Node
	// Wake is told the pods whose steps may succeed now. It must not block.
	Wake func(pods []types.UID)
	Log  *slog.Logger
}

// Storage gives out storage objects of the API server. It is safe for concurrent use; what it returns must not be changed.
type Storage struct {
	cfg    Config
	ctx    context.Context // of the watch; ended by Close
	cancel context.CancelFunc
	alive  sync.WaitGroup

	mu sync.Mutex
	// seen is closed, and made anew, when the Node object has changed.
	seen chan struct{}
	// waiting are the pods that could not go on because a volume was not attached, by its name.
	waiting map[corev1.UniqueVolumeName]map[types.UID]bool
	drivers drivers

	// csiNode guards the CSINode: one writer at a time.
	csiNode sync.Mutex
}

// New makes a Storage that has asked nothing yet. Close ends it.
func New(cfg Config) *Storage {
	s := &Storage{cfg: cfg, seen: make(chan struct{}), waiting: map[corev1.UniqueVolumeName]map[types.UID]bool{},
		drivers: drivers{known: make(chan struct{}), byName: map[string]*storagev1.CSIDriver{}}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Close ends the watch.
func (s *Storage) Close() {
	s.cancel()
	s.alive.Wait()
}

// get reads one object as it is now.
func (s *Storage) get(ctx context.Context, c rest.Interface, resource, namespace, name string, into runtime.Object) error {
	return s.read(ctx, c, resource, namespace, name, into, "")
}

// recall reads one object as the API server has it in memory, which may lag behind.
func (s *Storage) recall(ctx context.Context, c rest.Interface, resource, namespace, name string, into runtime.Object) error {
	return s.read(ctx, c, resource, namespace, name, into, "0")
}

func (s *Storage) read(ctx context.Context, c rest.Interface, resource, namespace, name string, into runtime.Object, version string) error {
	return client.Patiently(ctx, func(ctx context.Context) error {
		return c.Get().Throttle(nil).NamespaceIfScoped(namespace, namespace != "").Resource(resource).Name(name).
			VersionedParams(&metav1.GetOptions{ResourceVersion: version}, client.Parameters).Do(ctx).Into(into)
	})
}
