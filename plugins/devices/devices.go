package devices

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/nodelet/nodelet/internal/keylock"
	"github.com/nodelet/nodelet/plugins"
)

const (
	// PluginType is how device plugins call their type where they register by a socket of their own.
	PluginType = "DevicePlugin"

	dirName      = "device-plugins"
	resourcesDir = "pod-resources"
	// goneGrace is how long a resource is shown with its capacity after its plugin has gone.
	goneGrace = 5 * time.Minute
	// askTimeout bounds the calls that ask a plugin something, actTimeout those that have it do something.
	askTimeout = 10 * time.Second
	actTimeout = 30 * time.Second
)

// Config says where plugins register and who hears of them. The functions must not block.
type Config struct {
	Root string       // the agent's root directory, absolute
	Log  *slog.Logger // nil: nothing is logged
	// Grace is how long a resource is shown after its plugin has gone; zero means the kubelet's five minutes.
	Grace time.Duration
	// Pods gives the pods on the node that have not ended; it may take its time. Nil: nobody knows.
	Pods func(ctx context.Context) ([]*corev1.Pod, error)
	// Claims tells what a container has by resource claims; it must not call back. Nil: nothing.
	Claims func(pod *corev1.Pod, c *corev1.Container) []*podresources.DynamicResource
	// Changed is told that Capacity has changed; one call at a time, so that whoever passes it on ends with the newest.
	Changed func()
	// Wake is told the pods whose steps may succeed now.
	Wake func(pods []types.UID)
}

// Devices knows the plugins and who has their devices. It is safe for concurrent use.
type Devices struct {
	cfg        Config
	log        *slog.Logger
	dir        string
	background *plugins.Background
	// pods and asked are held while a pod that was let in without devices gets them, and while a plugin is asked: plugins
	// are used to one call at a time from the kubelet, and containers of a pod may start side by side.
	pods, asked keylock.Keyed

	// telling is held while Changed is called, saving while the checkpoint is written. They are taken in this order, and
	// mu last.
	telling, saving sync.Mutex

	mu        sync.Mutex
	resources map[string]*resource
	// withdrawn are resources whose plugins have been gone for longer than the grace.
	withdrawn map[string]bool
	given     map[types.UID]containers
	// reserved are the pods for which plugins are asked; no other is given anything.
	reserved map[types.UID]*reservation
	// waiting are the pods that wait for a plugin, by resource.
	waiting plugins.Waiters
}

// containers are the devices of a pod, by container and resource.
type containers map[string]map[string]*allocation

// New reads what earlier lives, or the kubelet, have given out. Nothing is called before Run.
func New(cfg Config) (*Devices, error) {
	if !filepath.IsAbs(cfg.Root) {
		return nil, fmt.Errorf("root directory %q must be an absolute path", cfg.Root)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Grace == 0 {
		cfg.Grace = goneGrace
	}
	d := &Devices{
		cfg:       cfg,
		log:       cfg.Log,
		dir:       filepath.Join(cfg.Root, dirName),
		resources: map[string]*resource{},
		withdrawn: map[string]bool{},
		given:     map[types.UID]containers{},
		reserved:  map[types.UID]*reservation{},
	}
	d.background = plugins.NewBackground(&d.mu)
	return d, d.load()
}

// Run serves the registration of plugins and follows them, until ctx ends.
func (d *Devices) Run(ctx context.Context) {
	d.awaitAll()
	registration, resources := grpc.NewServer(), grpc.NewServer()
	api.RegisterRegistrationServer(registration, &registrar{d: d})
	podresources.RegisterPodResourcesListerServer(resources, &lister{d: d})
	d.serve(registration, d.dir)
	d.serve(resources, filepath.Join(d.cfg.Root, resourcesDir))
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
