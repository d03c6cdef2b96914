package csi

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/machine"
	"github.com/nodelet/nodelet/internal/keylock"
	"github.com/nodelet/nodelet/plugins"
)

// Config says where the volumes are and whom to notify. The functions must not block.
type Config struct {
	Root     string // the agent's root directory, absolute
	NodeName string
	Log      *slog.Logger
	// CallTimeout bounds one call to a CSI driver; zero means the kubelet's two minutes.
	CallTimeout time.Duration
	// Health asks drivers for the condition of volumes in addition to their usage.
	Health bool
	// InTree are the drivers of in-tree kinds of volumes.
	InTree []InTreeDriver
	// BootID identifies this boot of the machine; empty means the kernel's.
	BootID string

	// Registered receives what a driver reports about the node, before the driver is notified of its registration, and
	// later when that has changed. An error is passed to the driver, and the registration, or the later report, is
	// repeated. It may block.
	Registered func(ctx context.Context, d DriverInfo) error
	// Limits returns after which period a driver is asked again how many volumes the node can have, 0 for never, and a
	// channel that is closed when that may have changed. It may block until ctx ends; only then it returns an error.
	Limits func(ctx context.Context, driver string) (period time.Duration, changed <-chan struct{}, err error)
	// Gone receives the name of a driver that has unregistered, or has only an earlier registration that does not answer.
	// It may block.
	Gone func(ctx context.Context, driver string)
	// Called receives each call to a CSI driver.
	Called func(driver, method string, took time.Duration, err error)
	// Changed is called when InUse has changed, one call at a time: a caller that publishes InUse in it ends with the
	// newest.
	Changed func()
	// Wake receives the pods whose failed steps may succeed now.
	Wake func(pods []types.UID)
}

// CSI stages, publishes and takes down volumes. It is safe for concurrent use.
type CSI struct {
	cfg     Config
	log     *slog.Logger
	files   files
	records *store
	drivers *drivers
	uses    keylock.Keyed // locks of uses, by useID; they come before those in calls
	calls   callLocks

	mu sync.Mutex
	// unstaging are the volumes that a background goroutine unstages.
	unstaging  map[key]bool
	background *plugins.Background
}

// New reads the records that earlier processes have left. It calls no driver before Run.
func New(cfg Config) (*CSI, error) {
	cfg.CallTimeout = cmp.Or(cfg.CallTimeout, callTimeout)
	if cfg.BootID == "" {
		id, err := machine.BootID()
		if err != nil {
			return nil, err
		}
		cfg.BootID = id
	}
	f, err := openFiles(cfg.Root)
	if err != nil {
		return nil, err
	}
	records := &store{
		files:   f,
		log:     cfg.Log,
		boot:    cfg.BootID,
		changed: cfg.Changed,
		volumes: map[key]*volume{},
		hidden:  map[string]string{},
	}
	if err := (&recovery{store: records, drivers: cfg.InTree}).run(); err != nil {
		return nil, errors.Join(err, f.root.Close())
	}
	c := &CSI{
		cfg:       cfg,
		log:       cfg.Log,
		files:     f,
		records:   records,
		drivers:   newDrivers(cfg.InTree),
		unstaging: map[key]bool{},
	}
	c.background = plugins.NewBackground(&c.mu)
	return c, nil
}

// Run unstages volumes that no pod uses, until ctx is done; then it closes the connections to drivers.
func (c *CSI) Run(ctx context.Context) {
	c.unstageUnused()
	c.background.Wait(ctx, nil)
	c.drivers.close()
}

// Close ends the work of a CSI on which Run was not called, and closes its directory.
func (c *CSI) Close() error {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	c.background.Wait(ended, nil)
	c.drivers.close()
	return c.files.root.Close()
}

// InUse returns the attachable volumes that are, or may be, in use on this node, sorted: volumesInUse of the Node's
// status.
func (c *CSI) InUse() []corev1.UniqueVolumeName { return c.records.inUse() }

// Pods returns the pods that have a use, including those that no longer exist.
func (c *CSI) Pods() []types.UID { return c.records.pods() }

// Driver returns the driver of a pod's volume, by a name that Used returned, and reports whether the volume is a
// device. The driver is empty if there is no such volume.
func (c *CSI) Driver(pod types.UID, name string) (driver string, block bool) {
	k, _ := c.records.find(pod, name)
	rec := c.records.get(k)
	return k.driver, rec != nil && rec.Block
}

// Used returns the names of the volumes that a pod uses, sorted.
func (c *CSI) Used(pod types.UID) []string { return c.records.used(pod) }
