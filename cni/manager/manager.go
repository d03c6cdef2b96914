package manager

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/cni"
	"github.com/nodelet/nodelet/internal/backoff"
)

// Where runtimes look for their network by default.
const (
	defaultConfDir = "/etc/cni/net.d"
	defaultBinDir  = "/opt/cni/bin"
)

// The modes: which component sets up the networks of pods.
const (
	ModeRuntime = "runtime"
	ModeAgent   = "agent"
	// ModeAuto is ModeAgent on a node without an API server whose network is not configured, otherwise ModeRuntime.
	ModeAuto = "auto"
)

// defaultRange is the pod CIDR of a node to which neither podCIDR nor an API server gives one. No common network add-on
// or container tool uses it by default.
var defaultRange = netip.MustParsePrefix("10.86.0.0/24")

// cleanupInterval is the time between two clean-ups if nothing happens.
const cleanupInterval = 10 * time.Minute

// cleanupRetry is the interval after a clean-up or a call that has failed.
const cleanupRetry = time.Minute

// statusInterval is the time between two questions to the plugins whether they can set up pods.
const statusInterval = 10 * time.Second

// Runtime is what the manager needs of the container runtime.
type Runtime interface {
	// Info returns the verbose part of the runtime's status.
	Info(ctx context.Context) (map[string]string, error)
	// SandboxIDs returns the set of the IDs of all sandboxes.
	SandboxIDs(ctx context.Context) (map[string]bool, error)
}

// Config is what a Manager needs. Fields without a remark are required.
type Config struct {
	Mode string
	// Dir is where package cni keeps its records and its socket.
	Dir string
	// ConfDir and BinDirs are where the runtime looks for its network. Empty: what the runtime says, else its defaults.
	ConfDir string
	BinDirs []string
	// Conf is the network configuration for ModeAgent; empty: one made from the pod CIDRs.
	Conf string
	// NetworksDir holds configurations of additional networks.
	NetworksDir string
	// PodCIDRs are the ranges of the node as long as SetPodCIDRs has not been called; may be empty.
	PodCIDRs []netip.Prefix
	// NonMasquerade are destinations to which pods keep their address. Empty: private ranges if there is an API server.
	NonMasquerade []netip.Prefix
	CallTimeout   time.Duration
	// CheckPeriod is the time between two checks of a sandbox's network; 0: none.
	CheckPeriod time.Duration

	Runtime Runtime
	// Answered is closed after the runtime's first answer. CheckSoon makes the agent ask the runtime for its status soon.
	Answered  <-chan struct{}
	CheckSoon func()
	// Core speaks to the core API. Nil: there is no API server.
	Core rest.Interface
	// Event records an event about a pod. PodChanged is called when PodProblem may return something else.
	Event      func(pod cni.Pod, eventType, reason, message string)
	PodChanged func(uid string)
	// Called and Released count the calls of plugins, and what was released of removed sandboxes.
	Called   func(cni.Call)
	Released func(cni.Reaped)
	Log      *slog.Logger
}

// Manager runs the pod network of the node. Its methods may be called from any goroutine. Create it with New.
type Manager struct {
	cfg     Config
	log     *slog.Logger
	cluster cluster
	// annotations are written in ModeAgent only.
	annotations *annotations

	mu     sync.Mutex
	mode   mode
	ranges []netip.Prefix

	// generatedGone is set when nothing is left of the generated network. generatedStays is the error that was logged
	// when it could not be removed. Only removeGenerated uses both.
	generatedGone  bool
	generatedStays string
}

// mode is one way to set up the networks of pods.
type mode interface {
	// run works until ctx ends.
	run(ctx context.Context)
	// problem returns why pods get no network, as far as the runtime does not know it.
	problem(runtimeReady bool) error
	// podProblem returns what is wrong with the network of a pod, or "".
	podProblem(uid string) string
	setRanges(ranges []netip.Prefix)
}

// undecided is the mode until the directories of the runtime are known.
type undecided struct{}

func (undecided) run(context.Context)      {}
func (undecided) problem(bool) error       { return nil }
func (undecided) podProblem(string) string { return "" }
func (undecided) setRanges([]netip.Prefix) {}

// New returns a Manager; Run makes it work.
func New(c Config) *Manager {
	m := &Manager{cfg: c, log: c.Log, mode: undecided{}, ranges: c.PodCIDRs, cluster: standalone{}}
	if c.Core != nil {
		m.cluster = apiServer{c.Core}
	}
	m.annotations = newAnnotations(m.cluster, c.Event)
	return m
}

// Problem returns why pods get no network, as far as the runtime does not know it. runtimeReady is what the runtime
// reports.
func (m *Manager) Problem(runtimeReady bool) error { return m.current().problem(runtimeReady) }

// PodProblem returns what is wrong with the network of a pod, or "".
func (m *Manager) PodProblem(uid string) string { return m.current().podProblem(uid) }

func (m *Manager) current() mode {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mode
}

// SetPodCIDRs sets the ranges that the control plane has assigned to the node. Without a valid one nothing changes.
func (m *Manager) SetPodCIDRs(cidrs []string) {
	var ranges []netip.Prefix
	for _, text := range cidrs {
		if p, err := netip.ParsePrefix(text); err == nil {
			ranges = append(ranges, p.Masked())
		}
	}
	if len(ranges) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ranges = ranges
	m.mode.setRanges(ranges)
}

// SetPods sets how to find the object that shows a pod in the API server. It does not block. Call it whenever such an
// object may have changed, from one goroutine only.
func (m *Manager) SetPods(shown func(uid types.UID) (*corev1.Pod, bool)) {
	m.annotations.shown.Put(shown)
}

// Run sets the network up in the configured mode and works until ctx ends.
func (m *Manager) Run(ctx context.Context) {
	dirs, ok := m.dirs(ctx)
	if !ok {
		return
	}
	name, dirs := m.choose(dirs)
	m.log.Info("pod network", "mode", name, "confDir", dirs.Conf, "binDirs", dirs.Bins)
	var chosen mode
	if name == ModeAgent {
		chosen = newAgentMode(m, dirs)
	} else {
		chosen = newRuntimeMode(m, dirs)
	}
	m.mu.Lock()
	m.mode = chosen
	chosen.setRanges(m.ranges)
	m.mu.Unlock()
	chosen.run(ctx)
}

// choose returns the mode, and the directories in that mode. As the runtime's plugin, nodelet needs a directory for
// plugins even if the runtime does not report one.
func (m *Manager) choose(dirs cni.Dirs) (mode string, _ cni.Dirs) {
	mode = Resolve(m.cfg.Mode, m.cfg.Core != nil, dirs.Conf)
	if mode == ModeAgent && len(dirs.Bins) == 0 {
		dirs.Bins = []string{defaultBinDir}
	}
	return mode, dirs
}

// Resolve returns the mode that a configured one stands for on a node with an API server or without one. confDir is
// where the runtime looks for its network.
func Resolve(configured string, api bool, confDir string) string {
	switch {
	case configured != ModeAuto:
		return configured
	case !api && cni.Vacant(confDir):
		return ModeAgent
	}
	return ModeRuntime
}

// dirs returns where the runtime looks for its network. It asks the runtime if the configuration does not say it.
func (m *Manager) dirs(ctx context.Context) (d cni.Dirs, ok bool) {
	if m.cfg.ConfDir != "" && len(m.cfg.BinDirs) > 0 {
		return m.cfg.Dirs(nil), true
	}
	select {
	case <-m.cfg.Answered:
	case <-ctx.Done():
		return d, false
	}
	info := m.info(ctx)
	return m.cfg.Dirs(info), ctx.Err() == nil
}

// Dirs returns where the runtime looks for its network: what the configuration says, else what the runtime says in the
// verbose part of its status, else the default for configurations. The directories for plugins may be unknown.
func (c Config) Dirs(info map[string]string) cni.Dirs {
	reported := cni.RuntimeDirs(info)
	d := cni.Dirs{Conf: cmp.Or(c.ConfDir, reported.Conf, defaultConfDir), Bins: c.BinDirs}
	if len(d.Bins) == 0 {
		d.Bins = reported.Bins
	}
	return d
}

// Check returns why nodelet could not set up the pod network in ModeAgent with the plugins of these directories, as far
// as files say that. It only reads.
func (c Config) Check(bins []string) error {
	ranges := c.PodCIDRs
	if len(ranges) == 0 {
		ranges = []netip.Prefix{defaultRange} // or those of the Node object
	}
	source := cni.SourceConfig{Dir: c.Dir, Conf: c.Conf, BinDirs: bins, Log: slog.New(slog.DiscardHandler)}
	return source.Check(ranges)
}

// info asks the runtime until it answers or ctx ends: the directories count as long as the agent runs.
func (m *Manager) info(ctx context.Context) (info map[string]string) {
	asking, answered := context.WithCancel(ctx)
	defer answered()
	backoff.Repeat(asking, cleanupRetry, func() (err error) {
		if info, err = m.cfg.Runtime.Info(ctx); err == nil {
			answered()
		}
		return err
	}, func(err error, retryIn time.Duration) {
		m.log.Warn("cannot ask the runtime for its CNI directories, trying again", "err", err, "retryIn", retryIn)
	})
	return info
}

func (m *Manager) driver(dirs cni.Dirs) *cni.Driver {
	return cni.NewDriver(cni.DriverConfig{
		Dir:       m.cfg.Dir,
		BinDirs:   dirs.Bins,
		CallLimit: m.cfg.CallTimeout,
		Observe:   m.cfg.Called,
	})
}

func (m *Manager) socket() string { return filepath.Join(m.cfg.Dir, "agent.sock") }

// release frees the networks of removed sandboxes. alive describes the networks that are in use. It returns when to
// call it again.
func (m *Manager) release(ctx context.Context, driver *cni.Driver, alive cni.Alive) (next time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	alive.List = m.cfg.Runtime.SandboxIDs
	r, err := driver.Reap(ctx, alive)
	if len(r.Sandboxes)+len(r.Addresses)+len(r.Devices) > 0 {
		m.cfg.Released(r)
		m.log.Info("released networks of removed sandboxes",
			"sandboxes", r.Sandboxes, "addresses", r.Addresses, "devices", r.Devices)
	}
	if err == nil {
		return cleanupInterval
	}
	if ctx.Err() == nil {
		m.log.Warn("cannot release all networks of removed sandboxes; will try again", "err", err, "retryIn", cleanupRetry)
	}
	return cleanupRetry
}

// removeGenerated removes what is left of the generated network, on a node that uses another, as soon as no sandbox
// needs it. It returns when to call it again.
func (m *Manager) removeGenerated(ctx context.Context) (next time.Duration) {
	if m.generatedGone {
		return cleanupInterval
	}
	gone, err := cni.RemoveGenerated(ctx)
	m.generatedGone = gone
	if err == nil && !gone {
		return cleanupRetry
	}
	if err != nil && ctx.Err() == nil && err.Error() != m.generatedStays {
		m.generatedStays = err.Error()
		m.log.Warn("cannot remove all of nodelet's own pod network, which this node does not use any more; will try again",
			"err", err, "retryIn", cleanupInterval)
	}
	return cleanupInterval
}
