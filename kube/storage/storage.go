package storage

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/internal/waiting"
	"github.com/nodelet/nodelet/kube/client"
)

// Config says how to reach the API server.
type Config struct {
	// Core and Storage are clients of /api/v1 and /apis/storage.k8s.io/v1.
	Core, Storage rest.Interface
	NodeName      string
	// ControllerAttaches: volumes are attached by the controller manager (enableControllerAttachDetach).
	ControllerAttaches bool
	// Node returns the newest version of the Node object that was seen, and InUse reports whether the API server has a
	// volume in its volumesInUse. Call NodeSeen when there is a newer version, or InUse reports more.
	Node  func() *corev1.Node
	InUse func(corev1.UniqueVolumeName) bool
	// Wake receives the pods whose failed steps may succeed now. It must not block.
	Wake func(pods []types.UID)
	// Problem receives why this node has no CSINode yet, from New on, and nil when it has one. It must not block.
	Problem func(error)
	Log     *slog.Logger
}

// Storage reads and writes storage objects of the API server. It is safe for concurrent use; callers must not change
// what it returns.
type Storage struct {
	cfg    Config
	ctx    context.Context // of the watch; ended by Close
	cancel context.CancelFunc
	alive  sync.WaitGroup

	mu sync.Mutex
	// seen is closed, and replaced, when the Node object has changed.
	seen chan struct{}
	// waiting are the pods that wait for a volume to be attached, by the volume's name.
	waiting waiting.Pods[corev1.UniqueVolumeName]
	drivers drivers
	// registered are the CSI drivers of this node, by name.
	registered map[string]NodeDriver

	// csiNode serializes writes to the CSINode.
	csiNode sync.Mutex
}

// New returns a Storage that has sent no request yet. Close ends it.
func New(cfg Config) *Storage {
	s := &Storage{
		cfg:        cfg,
		seen:       make(chan struct{}),
		registered: map[string]NodeDriver{},
		drivers: drivers{
			known:   make(chan struct{}),
			byName:  map[string]*storagev1.CSIDriver{},
			changed: make(chan struct{}),
			err:     errors.New("the API server has not answered yet"),
		},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	cfg.Problem(errors.New("CSINode is not yet initialized"))
	return s
}

// Close ends the watch.
func (s *Storage) Close() {
	s.cancel()
	s.alive.Wait()
}

// get reads the current version of an object.
func (s *Storage) get(
	ctx context.Context, c rest.Interface, resource, namespace, name string, into runtime.Object) error {
	return s.read(ctx, c, resource, namespace, name, into, "")
}

// read reads a version of an object: "" is the current one, and "0" may come from the API server's cache, which may lag
// behind.
func (s *Storage) read(
	ctx context.Context, c rest.Interface, resource, namespace, name string, into runtime.Object, version string) error {
	return client.RetryWhileLagging(ctx, func(ctx context.Context) error {
		return c.Get().Throttle(nil).NamespaceIfScoped(namespace, namespace != "").Resource(resource).Name(name).
			VersionedParams(&metav1.GetOptions{ResourceVersion: version}, client.Parameters).Do(ctx).Into(into)
	})
}
