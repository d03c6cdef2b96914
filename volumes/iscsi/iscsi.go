package iscsi

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/nodelet/nodelet/internal/keylock"
)

// Config says where things are. Empty fields mean the usual places.
type Config struct {
	Dir   string   // the plugin's directory below the agent's root directory; must be given
	State string   // who has created which session; must not survive a reboot
	Sys   string   // where sysfs is mounted
	Dev   string   // the devices
	DBs   []string // where iscsiadm may keep its records of targets
	Log   *slog.Logger
	// Events opens a stream of events about new devices. Nil: the kernel's.
	Events func() (Events, error)
	// SessionTimeout bounds what is done with a target's sessions in one call. Zero: two minutes.
	SessionTimeout time.Duration
}

// Driver is the node service for LUNs. Calls of the service that it lacks are never made.
type Driver struct {
	csipb.NodeClient
	initiator
	devices
	cfg     *Config
	targets keylock.Keyed // by name of the target: who logs in, logs out, or counts devices
	// withTimeout is context.WithTimeout, unless a test decides when the time is over.
	withTimeout func(context.Context, time.Duration) (context.Context, context.CancelFunc)
}

const sessionTimeout = 2 * time.Minute

// New creates a driver. It does not look for iscsiadm yet.
func New(cfg Config) *Driver {
	cfg.State = cmp.Or(cfg.State, "/run/nodelet/iscsi")
	cfg.Sys = cmp.Or(cfg.Sys, "/sys")
	cfg.Dev = cmp.Or(cfg.Dev, "/dev")
	cfg.SessionTimeout = cmp.Or(cfg.SessionTimeout, sessionTimeout)
	if cfg.DBs == nil {
		cfg.DBs = []string{"/etc/iscsi", "/var/lib/iscsi"}
	}
	if cfg.Events == nil {
		cfg.Events = kernelEvents
	}
	return &Driver{
		cfg:         &cfg,
		initiator:   initiator{&cfg},
		devices:     devices{&cfg, write},
		withTimeout: context.WithTimeout,
	}
}

// lockTarget keeps other calls away from the sessions of a LUN's target, until unlock is called. The work in between
// has a time limit.
func (d *Driver) lockTarget(ctx context.Context, l *LUN) (bound context.Context, unlock func(), err error) {
	bound, cancel := d.withTimeout(ctx, d.cfg.SessionTimeout)
	release, err := d.targets.Lock(bound, l.Iqn)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	return bound, func() { release(); cancel() }, nil
}
