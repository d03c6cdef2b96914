// Package dra has the drivers of Dynamic Resource Allocation prepare resource claims on this node (k8s.io/kubelet/pkg/apis/dra).
//
// It owns the drivers that have registered (Accept), the connections to them, and which claims are prepared here for which pods: the
// file <root-dir>/dra_manager_state, in the kubelet's form, written before a driver is asked to prepare anything and again
// when it has. What drivers answer are names of CDI devices, which the runtime resolves.
//
// It never decides when a pod needs its claims, never opens a device, and knows neither the runtime nor the API server: claims are
// read, and the ResourceSlices of drivers that have gone are deleted, through what Config brings.
//
// The agent calls Prepare and Unprepare, each step in its own goroutine. One call at a time works on a claim; a driver that hangs
// holds up nobody but the pods that have a claim on its devices.
//
// A crash leaves the file. The next life takes what stands in it for noted and no more: a pod that has a sandbox goes on with its
// devices, any other has its claims prepared once more, which drivers must bear, and what no pod needs any more is unprepared.
package dra

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/plugins/dra/checkpoint"
)

const (
	// PluginType is how drivers call their type where they register.
	PluginType = "DRAPlugin"

	// callTimeout bounds a call to a driver, as the kubelet does.
	callTimeout = 45 * time.Second
	// goneGrace is how long a driver may be away before its ResourceSlices are deleted.
	goneGrace = 30 * time.Second
)

// Config says where the file lies and what the API server knows. The functions may take their time, but for Wake.
type Config struct {
	Root string       // the agent's root directory, absolute
	Log  *slog.Logger // nil: nothing is logged
	// CallTimeout bounds one call to a driver, and Grace is how long a driver may be away before its ResourceSlices are deleted;
	// zero means the kubelet's 45 and 30 seconds.
	CallTimeout, Grace time.Duration
	// Claim reads a claim; nil: there is no API server.
	Claim func(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error)
	// Slices are the ResourceSlices of this node; nil: there is no API server.
	Slices Slices
	// Wake is told the pods whose steps may succeed now.
	Wake func(pods []types.UID)
}

// Slices are the ResourceSlices of this node.
type Slices interface {
	// Drivers are those that have some.
	Drivers(ctx context.Context) ([]string, error)
	// Delete deletes those of a driver.
	Delete(ctx context.Context, driver string) error
}

// DRA knows the drivers and what they have prepared. It is safe for concurrent use.
type DRA struct {
	cfg  Config
	log  *slog.Logger
	path string
	// ctx lives as long as Run.
	ctx    context.Context
	cancel context.CancelFunc
	alive  sync.WaitGroup

	saving sync.Mutex // held while the file is written; taken before mu

	mu sync.Mutex
	// drivers are the registered instances by name, in the order in which they came.
	drivers map[string][]*driver
	// waiting are the pods that could not go on for want of a driver, by its name.
	waiting map[string]map[types.UID]bool
	// withdrawals are the drivers that are away: each ends the deletion of its ResourceSlices.
	withdrawals map[string]context.CancelFunc
	claims      map[types.NamespacedName]*claim
	// busy are the claims that somebody works on; each is closed when that ends.
	busy map[types.NamespacedName]chan struct{}
}

// claim is a claim that is noted for pods.
type claim struct {
	checkpoint.Claim
	// prepared: all drivers have said in this life that it is.
	prepared bool
}

// New reads what earlier lives, or the kubelet, have left. Nothing is called before Run.
func New(cfg Config) (*DRA, error) {
	if !filepath.IsAbs(cfg.Root) {
		return nil, fmt.Errorf("root directory %q must be an absolute path", cfg.Root)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.CallTimeout == 0 {
		cfg.CallTimeout = callTimeout
	}
	if cfg.Grace == 0 {
		cfg.Grace = goneGrace
	}
	d := &DRA{cfg: cfg, log: cfg.Log, path: filepath.Join(cfg.Root, fileName), drivers: map[string][]*driver{},
		waiting: map[string]map[types.UID]bool{}, withdrawals: map[string]context.CancelFunc{},
		claims: map[types.NamespacedName]*claim{}, busy: map[types.NamespacedName]chan struct{}{}}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d, d.load()
}

// Run watches over the drivers until ctx ends; they are forgotten then.
func (d *DRA) Run(ctx context.Context) {
	stop := context.AfterFunc(ctx, d.cancel)
	defer stop()
	if d.cfg.Slices != nil {
		d.alive.Go(d.awaitDrivers)
	}
	<-d.ctx.Done()
	d.mu.Lock() // no driver is taken up after this
	d.cancel()
	d.mu.Unlock()
	d.alive.Wait()
}

// Holds tells whether claims are noted for a pod.
func (d *DRA) Holds(pod types.UID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.heldBy(pod)) > 0
}

// Pods are the pods for which claims are noted, in no order.
func (d *DRA) Pods() (all []types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := map[string]bool{}
	for _, c := range d.claims {
		for uid := range c.PodUIDs {
			if !seen[uid] {
				seen[uid] = true
				all = append(all, types.UID(uid))
			}
		}
	}
	return all
}

// heldBy are the claims that are noted for a pod. mu is held.
func (d *DRA) heldBy(pod types.UID) (keys []types.NamespacedName) {
	for key, c := range d.claims {
		if _, has := c.PodUIDs[string(pod)]; has {
			keys = append(keys, key)
		}
	}
	return keys
}

// enter waits until nobody works on any of the claims, and works on them until leave is called.
func (d *DRA) enter(ctx context.Context, keys []types.NamespacedName) (leave func(), err error) {
	for {
		d.mu.Lock()
		other := d.worked(keys)
		if other == nil {
			break
		}
		d.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	defer d.mu.Unlock()
	over := make(chan struct{})
	keys = slices.Clone(keys) // the caller may change his
	for _, key := range keys {
		d.busy[key] = over
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, key := range keys {
			delete(d.busy, key)
		}
		close(over)
	}, nil
}

// worked is closed when somebody has done his work on one of the claims; nil: nobody works on any. mu is held.
func (d *DRA) worked(keys []types.NamespacedName) chan struct{} {
	for _, key := range keys {
		if over := d.busy[key]; over != nil {
			return over
		}
	}
	return nil
}
