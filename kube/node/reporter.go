package node

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/kube/client"
)

const (
	// factsLife is how long the machine is taken as it was.
	factsLife = 5 * time.Minute
	// firstLook is how long a new node waits for the first word of the runtime, so that it can be born Ready.
	firstLook = 2 * time.Second
)

// Config is what a Reporter needs to know.
type Config struct {
	Name        string // of the Node object
	Register    bool   // create the object; else somebody else does
	Labels      map[string]string
	Taints      []corev1.Taint
	ProviderID  string
	IPs         []netip.Addr // from --node-ip
	KubeletPort int32        // 0: no server

	// ExternalCloud leaves the addresses to a cloud controller manager and registers with its taint.
	ExternalCloud bool
	// AttachDetach says that the controller manager attaches volumes for this node.
	AttachDetach bool
	// LocalStorage says that ephemeral-storage is a resource: the file system of RootDir.
	LocalStorage bool
	RootDir      string
	// MachineRoot is where /proc, /sys and /etc are found. Empty means "/".
	MachineRoot string

	MaxPods, PodsPerCore int // PodsPerCore 0: no limit by CPU
	MaxImages            int // -1: all
	Reserved             []corev1.ResourceList
	HoldBacks            []HoldBack
	DeclaredFeatures     []string // what this agent can do beyond the usual, sorted
	KubeletVersion       string
	UserAgent            string

	StatusInterval time.Duration // how often the status is computed (10 s)
	ReportInterval time.Duration // how often it is sent though nothing changed (5 min)
	LeaseDuration  time.Duration // 40 s

	// Event records an event about the node: corev1.EventTypeNormal or EventTypeWarning, a reason, a message.
	Event func(eventType, reason, message string)
	// Changed is told each new version of what Node gives, by one goroutine; it must not block. May be nil.
	Changed func(*corev1.Node)
	Log     *slog.Logger
}

// A Reporter keeps the Node object and the lease. One goroutine, report, is the only writer of the object's newest
// version.
type Reporter struct {
	cfg   Config
	api   *client.Client // for the watch
	beat  *beat
	lease *lease
	log   *slog.Logger

	newest   atomic.Pointer[corev1.Node] // nil before the object was seen; written by report alone
	local    atomic.Pointer[corev1.Node] // the object as it would be registered; written by report alone
	machine  atomic.Pointer[machineFacts]
	appeared chan struct{} // closed with the first version; from the start without an API server
	seen     chan *corev1.Node
	gone     chan struct{}
	wake     chan struct{}

	mu    sync.Mutex // guards in
	in    inputs
	state reportState // only report uses it
}

// machineFacts is what was read of the machine, and what follows from it.
type machineFacts struct {
	Machine
	capacity, allocatable corev1.ResourceList
}

// inputs are what others said last.
type inputs struct {
	health       health
	everReady    bool // the runtime was ready once in this life
	images       []corev1.ContainerImage
	volumesInUse []corev1.UniqueVolumeName
	// devices and healthy are how many devices there are, and how many of them may be given out.
	devices, healthy corev1.ResourceList
}

// New reads the machine and prepares the connections; it sends nothing. Without an API server (api is nil) the
// Reporter keeps the facts of the node for those who ask, and tells nobody else.
func New(cfg Config, api *client.Client, heartbeats *rest.Config) (*Reporter, error) {
	if cfg.MachineRoot == "" {
		cfg.MachineRoot = "/"
	}
	r := &Reporter{
		cfg: cfg, api: api, log: cfg.Log, appeared: make(chan struct{}),
		seen: make(chan *corev1.Node, 1), gone: make(chan struct{}, 1), wake: make(chan struct{}, 1),
	}
	if err := r.readMachine(time.Now()); err != nil {
		return nil, err
	}
	r.local.Store(r.initialNode())
	if api == nil {
		close(r.appeared)
		return r, nil
	}
	b, err := newBeat(heartbeats, cfg.UserAgent)
	if err != nil {
		return nil, err
	}
	r.beat = b
	r.lease = &lease{name: cfg.Name, duration: cfg.LeaseDuration, beat: b, node: r.newest.Load, appeared: r.appeared, log: cfg.Log, renewed: time.Now()}
	return r, nil
}

// Run registers the node, keeps its status and lease, and follows the object, until ctx ends.
func (r *Reporter) Run(ctx context.Context) {
	if r.api == nil {
		r.standalone(ctx)
		return
	}
	r.cfg.Event(corev1.EventTypeNormal, "Starting", "Starting kubelet.")
	var all sync.WaitGroup
	all.Go(func() { r.follow(ctx) })
	all.Go(func() { r.lease.run(ctx) })
	r.report(ctx)
	all.Wait()
}

// SetRuntime tells what the runtime said when it was asked. A change is sent at once.
func (r *Reporter) SetRuntime(s Runtime) {
	r.set(func(in *inputs) bool {
		if s.Err != nil {
			return false // the last good answer counts for a while
		}
		now := time.Now()
		wasSilent := now.Sub(in.health.heard) >= runtimeMayBeSilent // also before the first word
		changed := wasSilent || !reflect.DeepEqual(in.health.runtime, s)
		in.health.runtime, in.health.heard = s, now
		in.everReady = in.everReady || s.Ready.OK && s.Network.OK
		return changed
	})
}

// SetPressure tells which resources run short.
func (r *Reporter) SetPressure(p Pressure) {
	r.set(func(in *inputs) bool {
		changed := in.health.pressure != p
		in.health.pressure = p
		return changed
	})
}

// SetShutdown tells that the node goes down (err says why), or that it does not after all (nil).
func (r *Reporter) SetShutdown(err error) {
	r.set(func(in *inputs) bool { in.health.shutdown = err; return true })
}

// SetImages tells all images on the node: at the start, when one came or went, and now and then in between. Before
// the first call the object's own list stays.
func (r *Reporter) SetImages(images []Image) {
	list := imageList(images, r.cfg.MaxImages)
	r.set(func(in *inputs) bool {
		changed := !equality.Semantic.DeepEqual(in.images, list)
		in.images = list
		return changed
	})
}

// SetVolumesInUse tells which attachable volumes pods here use or may still use, sorted. Before the first call the
// object's own list stays. The controller manager does not detach a volume that stands there.
func (r *Reporter) SetVolumesInUse(v []corev1.UniqueVolumeName) {
	v = append([]corev1.UniqueVolumeName{}, v...)
	r.set(func(in *inputs) bool {
		changed := in.volumesInUse == nil || !slices.Equal(in.volumesInUse, v)
		in.volumesInUse = v
		return changed
	})
}

// SetDevices tells how many devices the node has by resource, and how many of them pods may use. A change is sent at
// once.
func (r *Reporter) SetDevices(all, healthy corev1.ResourceList) {
	r.set(func(in *inputs) bool {
		changed := !equality.Semantic.DeepEqual(in.devices, all) || !equality.Semantic.DeepEqual(in.healthy, healthy)
		in.devices, in.healthy = all, healthy
		return changed
	})
}

// set changes the inputs and wakes report where change says that something is new.
func (r *Reporter) set(change func(*inputs) bool) {
	r.mu.Lock()
	changed := change(&r.in)
	r.mu.Unlock()
	if changed {
		r.poke()
	}
}

func (r *Reporter) healthNow() health {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.in.health
}

func (r *Reporter) poke() {
	select {
	case r.wake <- struct{}{}:
	default: // it will be looked at anyway
	}
}

// Node gives the newest version of the Node object that was seen; before the API server was reached, the object as
// this agent would register it (without a UID), so that pods can be judged offline. The caller must not change it.
func (r *Reporter) Node() *corev1.Node {
	if n := r.newest.Load(); n != nil {
		return n
	}
	return r.local.Load()
}

// Seen is closed when Node gives the object as the API server has it. Without an API server it is closed from the
// start.
func (r *Reporter) Seen() <-chan struct{} { return r.appeared }

// Capacity gives what the machine has. The caller must not change it.
func (r *Reporter) Capacity() corev1.ResourceList { return r.machine.Load().capacity }

// Allocatable gives what pods may use in sum: the machine's own resources and the extended ones of the Node object.
func (r *Reporter) Allocatable() corev1.ResourceList {
	own := r.machine.Load().allocatable
	if n := r.newest.Load(); n != nil {
		return overlay(n.Status.Allocatable, own)
	}
	return maps.Clone(own)
}

// Health is an error when the control plane has not heard of this node for longer than its lease lasts.
func (r *Reporter) Health() error {
	if r.lease == nil {
		return nil
	}
	return r.lease.health(time.Now())
}

// readMachine takes the facts of the machine anew.
func (r *Reporter) readMachine(now time.Time) error {
	m, err := ReadMachine(r.cfg.MachineRoot)
	var disk int64
	if err == nil && r.cfg.LocalStorage {
		disk, err = diskSize(r.cfg.RootDir)
	}
	if err != nil {
		return err
	}
	f := &machineFacts{Machine: m}
	f.capacity = capacity(m, disk, r.cfg.MaxPods, r.cfg.PodsPerCore)
	f.allocatable = allocatable(f.capacity, r.cfg.Reserved, r.cfg.HoldBacks)
	r.machine.Store(f)
	r.state.machineRead = now
	return nil
}
