package dra

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/internal/keylock"
	"github.com/nodelet/nodelet/internal/waiting"
	"github.com/nodelet/nodelet/plugins"
	"github.com/nodelet/nodelet/plugins/dra/checkpoint"
)

const (
	// PluginType is the type with which drivers register.
	PluginType = "DRAPlugin"

	// callTimeout bounds a call to a driver; the kubelet has the same bound.
	callTimeout = 45 * time.Second
	// goneGrace is how long a driver may be gone before its ResourceSlices are deleted.
	goneGrace = 30 * time.Second
)

// Config says where the file is and how to reach the API server. Wake and HealthChanged must not block.
type Config struct {
	Root string // the agent's root directory, absolute
	Log  *slog.Logger
	// Grace is how long a driver may be gone before its ResourceSlices are deleted. Zero means the kubelet's 30 seconds.
	Grace time.Duration
	// API reads and deletes objects of the API server; nil: there is none.
	API API
	// Health: drivers are asked for the health of their devices, with HealthMessages also for their messages.
	Health, HealthMessages bool
	// HealthChanged receives the pods whose Health may have changed.
	HealthChanged func(pods []types.UID)
	// Wake receives the pods whose steps may succeed now.
	Wake func(pods []types.UID)
}

// API is what the drivers of this node have in the API server: *claims.Claims.
type API interface {
	// Claim reads a ResourceClaim.
	Claim(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error)
	// Drivers returns the drivers that have ResourceSlices for this node.
	Drivers(ctx context.Context) ([]string, error)
	// Delete deletes the ResourceSlices of a driver.
	Delete(ctx context.Context, driver string) error
}

// noAPI is a node without an API server.
type noAPI struct{}

func (noAPI) Claim(context.Context, string, string) (*resourcev1.ResourceClaim, error) {
	return nil, errors.New("ResourceClaims need an API server, and this node has none")
}
func (noAPI) Drivers(context.Context) ([]string, error) { return nil, nil }
func (noAPI) Delete(context.Context, string) error      { return nil }

// DRA knows the drivers and what they have prepared. It is safe for concurrent use.
type DRA struct {
	cfg        Config
	log        *slog.Logger
	path       string
	background *plugins.Background
	// working are held while drivers prepare or unprepare ResourceClaims, by namespace/name.
	working keylock.Keyed

	saving sync.Mutex // held while the file is written; taken before mu

	mu sync.Mutex
	// drivers are the registered instances by name, in the order of their registration.
	drivers map[string][]*driver
	// registered are the drivers that have registered in this process.
	registered map[string]bool
	// waiting are the pods that wait for a driver, by its name.
	waiting waiting.Pods[string]
	// withdrawals are the drivers that are gone; each function cancels the deletion of its ResourceSlices.
	withdrawals map[string]context.CancelFunc
	claims      recorded
}

// recorded are the ResourceClaims that are recorded for pods. DRA.mu guards them.
type recorded map[types.NamespacedName]*claim

// claim is a ResourceClaim that is recorded for pods.
type claim struct {
	checkpoint.Claim
	// prepared: all drivers have prepared it in this process.
	prepared bool
	// allocated are its devices; nil if no pod has come for them in this process.
	allocated []resourcev1.DeviceRequestAllocationResult
}

// heldBy reports whether the claim is recorded for a pod. mu is held.
func (c *claim) heldBy(pod types.UID) bool {
	_, has := c.PodUIDs[string(pod)]
	return has
}

// New reads the file of an earlier process or of the kubelet. Nothing is called before Run.
func New(cfg Config) (*DRA, error) {
	cfg.Grace = cmp.Or(cfg.Grace, goneGrace)
	if cfg.API == nil {
		cfg.API = noAPI{}
	}
	d := &DRA{
		cfg:         cfg,
		log:         cfg.Log,
		path:        filepath.Join(cfg.Root, fileName),
		drivers:     map[string][]*driver{},
		registered:  map[string]bool{},
		withdrawals: map[string]context.CancelFunc{},
		claims:      recorded{},
	}
	d.background = plugins.NewBackground(&d.mu)
	return d, d.load()
}

// Run follows the drivers until ctx ends.
func (d *DRA) Run(ctx context.Context) {
	d.background.Go(d.awaitDrivers)
	d.background.Wait(ctx, nil)
}

// Holds reports whether ResourceClaims are recorded for a pod.
func (d *DRA) Holds(pod types.UID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.claims.of(pod)) > 0
}

// Pods returns the pods for which ResourceClaims are recorded, sorted.
func (d *DRA) Pods() []types.UID {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.claims.podsOf(func(*claim) bool { return true })
}

// podsOf returns the pods for which one of the chosen ResourceClaims is recorded, sorted.
func (r recorded) podsOf(chosen func(*claim) bool) (pods []types.UID) {
	for _, c := range r {
		if !chosen(c) {
			continue
		}
		for uid := range c.PodUIDs {
			pods = append(pods, types.UID(uid))
		}
	}
	slices.Sort(pods)
	return slices.Compact(pods)
}

// of returns the ResourceClaims that are recorded for a pod.
func (r recorded) of(pod types.UID) (keys []types.NamespacedName) {
	for key, c := range r {
		if c.heldBy(pod) {
			keys = append(keys, key)
		}
	}
	return keys
}

// lockAll waits until no other call works on any of the claims. It locks them in order, so that two calls cannot wait
// for each other.
func lockAll(ctx context.Context, working *keylock.Keyed, keys []types.NamespacedName) (unlock func(), err error) {
	var unlocks []func()
	unlock = func() {
		for _, u := range unlocks {
			u()
		}
	}
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = key.String()
	}
	slices.Sort(names)
	for _, name := range names {
		u, err := working.Lock(ctx, name)
		if err != nil {
			unlock()
			return nil, err
		}
		unlocks = append(unlocks, u)
	}
	return unlock, nil
}

// work calls drivers for ResourceClaims that are locked. If ctx ends before, work returns, and do goes on: it keeps the
// lock until the drivers have answered, or their timeouts have passed.
func (d *DRA) work(ctx context.Context, unlock func(), do func() error) error {
	ended := make(chan error, 1)
	if !d.background.Begin(func() { defer unlock(); ended <- do() }) {
		unlock()
		return plugins.ErrEnding
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// InUse returns the number of ResourceClaims that are prepared for pods: all together, and by driver.
func (d *DRA) InUse() (total int, byDriver map[string]int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	byDriver = map[string]int{}
	for _, c := range d.claims {
		if !c.inUse() {
			continue
		}
		total++
		for driver := range c.DriverState {
			byDriver[driver]++
		}
	}
	return total, byDriver
}

// inUse reports whether the claim is prepared: in this process, or, by what its drivers have answered, in an earlier
// one. mu is held.
func (c *claim) inUse() bool {
	for _, state := range c.DriverState {
		if len(state.Devices) > 0 {
			return true
		}
	}
	return c.prepared
}
