// Package devices gives the devices of device plugins to containers (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1).
//
// It owns the socket <root-dir>/device-plugins/kubelet.sock at which plugins register, the connections to them, what they last
// said of their devices, and which container has which: the file kubelet_internal_checkpoint beside that socket, in the
// kubelet's form, written before a pod is told that it has its devices. Plugins that register in <root-dir>/plugins_registry
// come through Accept.
//
// At <root-dir>/pod-resources/kubelet.sock it tells who asks which container has which devices
// (k8s.io/kubelet/pkg/apis/podresources/v1).
//
// It never decides which pod may run, never opens a device, and knows neither the API server nor the runtime: what it tells of
// capacities, cmd/nodelet passes on. Of NUMA nodes it keeps what plugins say, and chooses nothing by them.
//
// The agent calls it: Reserve where pods are admitted, one after the other, what that returns aside, since plugins may be slow, and
// Container in the step that makes one. A plugin is asked for one pod at a time. One goroutine a plugin follows what it says of its
// devices.
//
// A crash leaves the checkpoint. The next life takes all that stands in it for given out, removes the sockets of the plugins,
// which makes them register anew, and shows no device as allocatable before its plugin has. A crash between a plugin's answer
// and the checkpoint costs nothing but that Allocate is called again.
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
	cfg Config
	log *slog.Logger
	dir string
	// ctx lives as long as Run.
	ctx    context.Context
	cancel context.CancelFunc
	alive  sync.WaitGroup

	// telling is held while Changed is called, saving while the checkpoint is written. They are taken in this order, and mu last.
	telling, saving sync.Mutex

	mu        sync.Mutex
	resources map[string]*resource
	// withdrawn are resources whose plugins have been gone for longer than the grace.
	withdrawn map[string]bool
	given     map[types.UID]containers
	// reserved are the pods for which plugins are asked; no other is given anything.
	reserved map[types.UID]*reservation
	// turns are those of turn.
	turns map[string]chan struct{}
	// waiting are the pods that could not go on for want of a plugin, by resource.
	waiting map[string]map[types.UID]bool
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
		cfg: cfg, log: cfg.Log, dir: filepath.Join(cfg.Root, dirName), resources: map[string]*resource{}, withdrawn: map[string]bool{},
		given: map[types.UID]containers{}, reserved: map[types.UID]*reservation{}, turns: map[string]chan struct{}{}, waiting: map[string]map[types.UID]bool{},
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d, d.load()
}

// Run has plugins register and follows them, until ctx ends.
func (d *Devices) Run(ctx context.Context) {
	stop := context.AfterFunc(ctx, d.cancel)
	defer stop()
	d.awaitAll()
	registration, resources := grpc.NewServer(), grpc.NewServer()
	api.RegisterRegistrationServer(registration, &registrar{d: d})
	podresources.RegisterPodResourcesListerServer(resources, &lister{d: d})
	d.serve(registration, d.dir)
	d.serve(resources, filepath.Join(d.cfg.Root, resourcesDir))
	<-d.ctx.Done()
	registration.Stop()
	resources.Stop()
	d.mu.Lock() // no plugin is taken up after this
	d.cancel()
	for _, r := range d.resources {
		r.stopTimer()
	}
	d.mu.Unlock()
	d.alive.Wait()
}
