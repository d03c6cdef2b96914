package devices

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/nodelet/nodelet/internal/keylock"
	"github.com/nodelet/nodelet/internal/waiting"
	"github.com/nodelet/nodelet/plugins"
)

const (
	// PluginType is the type of device plugins that register by a socket of their own.
	PluginType = "DevicePlugin"

	dirName      = "device-plugins"
	resourcesDir = "pod-resources"
	// goneGrace is how long a resource keeps its capacity after its plugin is gone.
	goneGrace = 5 * time.Minute
	// askTimeout bounds the calls that only ask a plugin, actTimeout those that make it work.
	askTimeout = 10 * time.Second
	actTimeout = 30 * time.Second
)

// Config says where plugins register and who is notified. The functions must not block.
type Config struct {
	Root string // the agent's root directory, absolute
	Log  *slog.Logger
	// Grace is how long a resource is reported after its plugin is gone; zero means the kubelet's five minutes.
	Grace time.Duration
	// RegisterTimeout is how long Resume waits for plugins; zero means 30 seconds.
	RegisterTimeout time.Duration
	// Limiter bounds the calls of the pod resources API; nil means as the kubelet does.
	Limiter flowcontrol.RateLimiter
	// Pods returns the pods of the node that have not terminated: those that exist for the clients of the pod resources
	// API, and those that are gone for them. It may block.
	Pods func(ctx context.Context) (known, gone []*corev1.Pod, err error)
	// Claims returns what a container has by ResourceClaims. It must not call back.
	Claims func(pod *corev1.Pod, c *corev1.Container) []*podresources.DynamicResource
	// Exclusive returns the CPUs and memory that containers have exclusively.
	Exclusive Exclusive
	// Changed is called after Capacity has changed, one call at a time.
	Changed func()
	// Asked is called after each call of the pod resources API, with its version, such as v1, and its name.
	Asked func(version, call string, err error)
	// Registered counts a plugin that has registered, Allocated a call for devices of a resource.
	Registered func(resource string)
	Allocated  func(resource string, took time.Duration)
	// HealthChanged receives the pods whose Health may have changed.
	HealthChanged func(pods []types.UID)
	// Wake receives the pods whose steps may succeed now.
	Wake func(pods []types.UID)
}

// Share holds the CPUs and memory that a container or a pod has exclusively, or can get.
type Share struct {
	CPUs   []int64
	Memory []*podresources.ContainerMemory
}

// Exclusive says which CPUs and which memory containers and pods have exclusively.
type Exclusive interface {
	// OfContainer returns what a container has exclusively, without what the containers of a pod share.
	OfContainer(pod *corev1.Pod, c *corev1.Container) Share
	// OfPod returns what a pod has as a whole, to divide among its containers.
	OfPod(types.UID) Share
	// All returns what containers can get exclusively on an empty node.
	All() Share
}

// Devices knows the plugins, their devices and the allocations. It is safe for concurrent use.
type Devices struct {
	cfg        Config
	log        *slog.Logger
	dir        string
	background *plugins.Background
	// pods and asked are held while a pod that was admitted without devices gets them, and while a plugin is called: the
	// kubelet calls a plugin once at a time, and containers of a pod may start concurrently.
	pods, asked keylock.Keyed

	// notifying is held while Changed is called, saving while the checkpoint is written. They are taken in this order, and
	// mu last.
	notifying, saving sync.Mutex

	mu sync.Mutex
	inventory
	// waiting are the pods that wait for a plugin, by resource.
	waiting waiting.Pods[string]
}

// New reads the checkpoint of an earlier process or of the kubelet. Nothing is called before Run.
func New(cfg Config) (*Devices, error) {
	cfg.Grace = cmp.Or(cfg.Grace, goneGrace)
	cfg.RegisterTimeout = cmp.Or(cfg.RegisterTimeout, registerTimeout)
	if cfg.Limiter == nil {
		cfg.Limiter = flowcontrol.NewTokenBucketRateLimiter(callsPerSecond, callsAtOnce)
	}
	d := &Devices{
		cfg: cfg,
		log: cfg.Log,
		dir: filepath.Join(cfg.Root, dirName),
		inventory: inventory{
			resources: map[string]*resource{},
			withdrawn: map[string]bool{},
			given:     map[slot]*allocation{},
			reserved:  map[types.UID]*reservation{},
			changed:   make(chan struct{}),
		},
	}
	d.background = plugins.NewBackground(&d.mu)
	return d, d.load()
}

// Run serves the registration of plugins and follows them, until ctx ends.
func (d *Devices) Run(ctx context.Context) {
	d.awaitAll()
	registration, resources := grpc.NewServer(), (&lister{d: d}).server()
	api.RegisterRegistrationServer(registration, &registrar{d: d})
	d.serve(ctx, registration, d.dir, false)
	d.serve(ctx, resources, filepath.Join(d.cfg.Root, resourcesDir), true)
	d.background.Wait(ctx, func() {
		registration.Stop()
		resources.Stop()
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, r := range d.resources {
			r.stopTimer()
		}
	})
}
