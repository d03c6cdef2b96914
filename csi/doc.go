// Package csi drives the volumes of CSI drivers on this node (CSI specification 1.13, node service, and the condition of volumes that
// drivers of 1.12 tell).
//
// It owns the drivers that have registered (Accept), the connections to them, and what they have set up
// here: which volume is staged, which pods use it, where it is published. Paths and vol_data.json files are the
// kubelet's, so that a node with mounted volumes can be handed over and back.
//
// Each volume has a record, and a journal of it in <root-dir>/nodelet/csi. A pod claims a volume in it before anything is staged, and
// every call that changes something is noted there before it is made. Whoever unstages holds the volume's lock and finds no
// claim; whoever claims waits for that lock. So nothing is unstaged under a pod, and nothing staged is forgotten.
//
// Kinds of volume of Kubernetes itself that are staged and published in the same way, such as iscsi, are driven as if they were CSI drivers
// (Kind), with the paths that they have in a kubelet.
//
// It never talks to the API server or the runtime (the caller brings what the API says of a volume), never decides when
// a pod needs a volume, never mounts or unmounts by itself, and removes only empty directories and its own files.
//
// The agent calls it, each step in its own goroutine; a slow volume holds up nobody but its own users.
//
// A crash leaves records whose last note may be of a call that did or did not have its effect. The next life reads them
// beside the kubelet's files and the mount table: what is surely there is used as it is, all else is asked for again
// (the calls are idempotent by the specification), and what no pod claims is taken down.
package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/internal/keylock"
)

// Config says where the volumes are and who hears of them. The functions must not block.
type Config struct {
	Root     string // the agent's root directory, absolute
	NodeName string
	Log      *slog.Logger // nil: nothing is logged
	// CallTimeout bounds one call to a driver; zero means the kubelet's two minutes.
	CallTimeout time.Duration
	// Health has drivers asked for the health of volumes beside their figures.
	Health bool
	// Kinds are the kinds of volume of Kubernetes itself that are driven like CSI drivers.
	Kinds []Kind
	// BootID tells one boot of the machine from another; empty means the kernel's.
	BootID string

	// Registered is told what a driver says of the node before the driver hears that it is registered. Its error is told to
	// the driver, and the registration is tried again. It may take its time. Nil: nobody asks.
	Registered func(ctx context.Context, d DriverInfo) error
	// Gone is told that a driver has withdrawn. It may take its time. Nil: nobody asks.
	Gone func(ctx context.Context, driver string)
	// Changed is told that InUse has changed; one call at a time, so that whoever passes InUse on in it ends with the newest.
	Changed func()
	// Wake is told the pods whose steps may succeed now.
	Wake func(pods []types.UID)
}

// CSI knows the drivers and their volumes. It is safe for concurrent use.
type CSI struct {
	cfg   Config
	log   *slog.Logger
	files files
	locks keylock.Keyed
	// ctx lives as long as Run: work that no step waits for ends with it.
	ctx    context.Context
	cancel context.CancelFunc
	alive  sync.WaitGroup

	telling sync.Mutex // held while Changed is called

	mu      sync.Mutex
	drivers map[string]*driver
	// arrived is closed, and made anew, when a driver has registered.
	arrived chan struct{}
	// waiting are the pods that could not go on for want of a driver, by its name.
	waiting map[string]map[types.UID]bool
	volumes map[key]*volume
	// sweeping are the volumes that are being taken down behind the steps' backs.
	sweeping map[key]bool
}

// New reads what earlier lives have left. Nothing is called before Run.
func New(cfg Config) (*CSI, error) {
	if !filepath.IsAbs(cfg.Root) {
		return nil, fmt.Errorf("root directory %q must be an absolute path", cfg.Root)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.CallTimeout == 0 {
		cfg.CallTimeout = callTimeout
	}
	if cfg.BootID == "" {
		id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return nil, fmt.Errorf("read the boot ID: %w", err)
		}
		cfg.BootID = strings.TrimSpace(string(id))
	}
	f, err := openFiles(cfg.Root)
	if err != nil {
		return nil, err
	}
	c := &CSI{
		cfg: cfg, log: cfg.Log, files: f,
		drivers: map[string]*driver{}, arrived: make(chan struct{}), waiting: map[string]map[types.UID]bool{},
		volumes: map[key]*volume{}, sweeping: map[key]bool{},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.admitKinds()
	return c, c.recover()
}

// Run takes down what no pod claims, until ctx ends; the drivers are forgotten then.
func (c *CSI) Run(ctx context.Context) {
	stop := context.AfterFunc(ctx, c.cancel)
	defer stop()
	c.sweepAll()
	<-c.ctx.Done()
	c.alive.Wait()
	c.closeDrivers()
}

// Close ends what a CSI without Run may have begun, and gives its directory back.
func (c *CSI) Close() error {
	c.cancel()
	c.alive.Wait()
	c.closeDrivers()
	return c.files.root.Close()
}

// checkName refuses what is no single path element: names come from the API and from files on disk.
func checkName(what, name string) error {
	if name == "" || name == "." || name == ".." || len(name) > 255 || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("%s %q cannot be the name of a directory", what, name)
	}
	return nil
}

// errNoDriver is in the chain of errors about drivers that are not registered.
var errNoDriver = errors.New("is not registered")
