package node

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/host/machine"
	"github.com/nodelet/nodelet/internal/latest"
	"github.com/nodelet/nodelet/kube/client"
)

const (
	// machineInterval is how often the facts of the machine are read.
	machineInterval = 5 * time.Minute
	// firstAnswer is how long a new node waits for the first answer of the runtime, so that its first status names the
	// runtime.
	firstAnswer = 2 * time.Second
)

// Config has the settings of a Reporter.
type Config struct {
	Name string // of the Node object
	Registration
	IPs         []netip.Addr // from --node-ip
	KubeletPort int32        // 0: no server

	// LocalStorage is true if ephemeral-storage is a resource: the size of the file system of RootDir.
	LocalStorage bool
	RootDir      string
	// MachineRoot is where /proc, /sys and /etc are found. Empty means "/".
	MachineRoot string

	MaxPods, PodsPerCore int // PodsPerCore 0: no limit by CPU
	MaxImages            int // -1: all
	Reserved             []corev1.ResourceList
	EvictionHard         []EvictionThreshold
	// DeclaredFeatures are status.declaredFeatures, sorted, as far as the runtime has them.
	DeclaredFeatures []string
	// ShowUserNamespace is whether the status says if the agent is in a user namespace.
	ShowUserNamespace bool
	KubeletVersion    string
	UserAgent         string

	Intervals
	// Event records an event about the node: corev1.EventTypeNormal or EventTypeWarning, a reason, a message.
	Event func(eventType, reason, message string)
	// Changed is called with each new result of Node, and when InUse reports more volumes, always by the same goroutine.
	// It must not block.
	Changed func(*corev1.Node)
	Log     *slog.Logger
}

// Registration says how the Node object is created.
type Registration struct {
	Register   bool // create the object; if false, another component creates it
	Labels     map[string]string
	Taints     []corev1.Taint
	ProviderID string
	// ExternalCloud leaves the addresses to a cloud controller manager and registers with its taint.
	ExternalCloud bool
	// AttachDetach is true if the controller manager attaches volumes for this node.
	AttachDetach bool
}

// Intervals are the times between two requests.
type Intervals struct {
	StatusInterval time.Duration // how often the status is computed (10 s)
	ReportInterval time.Duration // how often it is sent if nothing has changed (5 min)
	LeaseDuration  time.Duration // 40 s
}

// A Reporter keeps the Node object and the lease up to date. One goroutine, report, is the only writer of the object's
// newest version.
//
// After a restart of the agent, a node whose Ready condition is True keeps it until the node has had no problem once,
// at most for three quarters of the lease duration.
type Reporter struct {
	cfg  Config
	core rest.Interface // for the watch
	// beat is the client for heartbeats, with a connection of its own. client-go shares one HTTP/2 connection between all
	// clients of one configuration. If that is half open (packets are lost without an error), the lease would not be
	// renewed either, and the control plane would treat a healthy node as lost. So lease replaces beat's connection when
	// it does not work.
	beat  *client.Client
	lease *lease
	log   *slog.Logger

	newest   atomic.Pointer[corev1.Node] // nil before the first version; only report writes it
	deleted  atomic.Bool                 // the API server has no Node object any more
	sent     acceptance                  // of statuses; only report writes it
	local    atomic.Pointer[corev1.Node] // the object to register; only report writes it
	machine  atomic.Pointer[machineFacts]
	setBack  atomic.Bool   // the clock was set back since the last report
	appeared chan struct{} // closed with the first version; without an API server closed from the start
	seen     latest.Value[*corev1.Node]
	gone     latest.Signal
	outdated chan chan struct{} // channels to be closed when the object has been read again

	inputs
	state reportState // only report uses it
}

// machineFacts are the facts of the machine, and the resources computed from them.
type machineFacts struct {
	Machine
	capacity, allocatable corev1.ResourceList
}

// New reads the machine and prepares the connections; it sends nothing. renew replaces the connection of heartbeats.
// core is for the watch. Without an API server it is nil, and the Reporter only answers calls of its methods.
func New(cfg Config, core rest.Interface, heartbeats *rest.Config, renew func() error) (*Reporter, error) {
	cfg.MachineRoot = cmp.Or(cfg.MachineRoot, "/")
	r := &Reporter{
		cfg:      cfg,
		core:     core,
		log:      cfg.Log,
		appeared: make(chan struct{}),
		seen:     latest.NewValue[*corev1.Node](),
		gone:     latest.NewSignal(),
		outdated: make(chan chan struct{}),
		inputs:   inputs{wake: latest.NewSignal(), maxImages: cfg.MaxImages},
	}
	r.state.own.find = findIPs
	if err := r.readMachine(time.Now()); err != nil {
		return nil, err
	}
	if err := checkReservation(r.Reservation(), r.Capacity()); err != nil {
		return nil, err
	}
	r.state.emptyRoot = emptyRoot(cfg.RootDir)
	r.local.Store(r.initialNode())
	if core == nil {
		close(r.appeared)
		return r, nil
	}
	r.sent.last.Store(&refusal{err: errNotSent})
	var err error
	if r.beat, err = client.New(heartbeats, -1, 0, cfg.UserAgent); err != nil { // no heartbeat waits for a rate limit
		return nil, fmt.Errorf("set up the connection for heartbeats: %w", err)
	}
	r.lease = &lease{
		name:     cfg.Name,
		duration: cfg.LeaseDuration,
		beat:     r.beat,
		renew:    renew,
		node:     r.newest.Load,
		deleted:  r.deleted.Load,
		appeared: r.appeared,
		setBack:  func() { r.setBack.Store(true); r.wake.Set() },
		log:      cfg.Log,
	}
	return r, nil
}

// Run registers the node, keeps its status and lease up to date, and watches the object until ctx ends. Without an API
// server it keeps the facts about the node.
func (r *Reporter) Run(ctx context.Context) {
	if r.core == nil {
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

// Node returns the newest version of the Node object. Before the API server has answered, it returns the object that
// this agent would register (without a UID), so that pods can be admitted offline. The caller must not change it.
func (r *Reporter) Node() *corev1.Node {
	if n := r.newest.Load(); n != nil {
		return n
	}
	return r.local.Load()
}

// Seen returns a channel that is closed when Node returns the object of the API server. Without an API server it is
// closed from the start.
func (r *Reporter) Seen() <-chan struct{} { return r.appeared }

// Capacity returns the capacity of the machine. The caller must not change it.
func (r *Reporter) Capacity() corev1.ResourceList { return r.machine.Load().capacity }

// UID returns the UID of the Node object, which owns mirror pods, or an error while the node is not registered.
func (r *Reporter) UID(context.Context) (types.UID, error) {
	o := r.Node()
	if o.UID == "" || o.DeletionTimestamp != nil {
		return "", fmt.Errorf("node %q is not registered yet", o.Name)
	}
	return o.UID, nil
}

// Allocatable returns what all pods together may use: the machine's own resources and the extended resources of the
// Node object.
func (r *Reporter) Allocatable() corev1.ResourceList {
	own := r.machine.Load().allocatable
	if n := r.newest.Load(); n != nil {
		return overlay(n.Status.Allocatable, own)
	}
	return maps.Clone(own)
}

// readMachine reads the facts of the machine.
func (r *Reporter) readMachine(now time.Time) error {
	m, err := readMachine(r.cfg.MachineRoot)
	var disk machine.FileSystem
	if err == nil && r.cfg.LocalStorage {
		disk, err = machine.ReadFileSystem(r.cfg.RootDir)
	}
	if err != nil {
		return err
	}
	f := &machineFacts{Machine: m}
	f.capacity = capacity(m, int64(disk.Size), r.cfg.MaxPods, r.cfg.PodsPerCore)
	f.allocatable = allocatable(f.capacity, r.cfg.Reserved, r.cfg.EvictionHard)
	r.machine.Store(f)
	r.state.machineRead = now
	return nil
}
