package main

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/cni"
	"github.com/nodelet/nodelet/config"
)

// Where runtimes look for their network unless told otherwise.
const (
	usualConfDir = "/etc/cni/net.d"
	usualBinDir  = "/opt/cni/bin"
)

// network is the wiring of the room cni: who sets up the pods' networks on this node, and what is told of it.
type network struct {
	n       *nodelet
	cfg     config.Network
	log     *slog.Logger
	watcher *cni.Watcher
	// source is the node's own network; nil unless nodelet is the network.
	source  atomic.Pointer[cni.Source]
	checker atomic.Pointer[cni.Checker]
	meter   networkMeter
	// installed is what keeps nodelet from being the runtime's plugin.
	installed atomic.Pointer[error]

	mu     sync.Mutex
	ranges []netip.Prefix
}

func (n *nodelet) makeNetwork() error {
	w := &network{n: n, cfg: n.cfg.Network, log: n.log.With("room", "cni"), ranges: n.cfg.Network.PodCIDRs}
	w.watcher = cni.NewWatcher(n.monitor.CheckSoon, w.log)
	w.meter.add(&n.measured.main)
	n.network = w
	return nil
}

// podProblem says what is wrong with the network of a pod, empty for nothing.
func (w *network) podProblem(uid types.UID) string {
	if c := w.checker.Load(); c != nil {
		return c.Problem(string(uid))
	}
	return ""
}

// problem says what keeps pods from getting a network, as far as the runtime does not know it.
func (w *network) problem(runtimeReady bool) error {
	source := w.source.Load()
	if source == nil {
		return w.watcher.Problem(runtimeReady)
	}
	if _, err := source.Now(); err != nil {
		return err
	}
	if err := w.installed.Load(); err != nil && *err != nil {
		return *err
	}
	return nil
}

// nodeChanged takes the pod ranges that the control plane has given to this node.
func (w *network) nodeChanged(o *corev1.Node) {
	var ranges []netip.Prefix
	all := o.Spec.PodCIDRs
	if len(all) == 0 && o.Spec.PodCIDR != "" {
		all = []string{o.Spec.PodCIDR}
	}
	for _, text := range all {
		if p, err := netip.ParsePrefix(text); err == nil {
			ranges = append(ranges, p.Masked())
		}
	}
	if len(ranges) == 0 {
		return
	}
	w.mu.Lock()
	w.ranges = ranges
	w.mu.Unlock()
	if source := w.source.Load(); source != nil {
		source.SetRanges(ranges)
	}
}

func (w *network) podRanges() []netip.Prefix {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ranges
}

// run sets the network up, in the way that was asked for, and works until ctx ends.
func (w *network) run(ctx context.Context) {
	dirs, ok := w.dirs(ctx)
	if !ok {
		return
	}
	mode := w.cfg.Mode
	if mode == "auto" {
		mode = "runtime"
		if w.n.api == nil && cni.Vacant(dirs.Conf) {
			mode = "agent"
		}
	}
	w.log.Info("pod network", "mode", mode, "conf-dir", dirs.Conf, "bin-dirs", dirs.Bins)
	if mode == "agent" {
		w.runAgent(ctx, dirs)
		return
	}
	if removed, err := cni.Uninstall(dirs.Conf); removed || err != nil {
		w.log.Info("nodelet is not the network any more", "removed", removed, "err", err)
	}
	w.watcher.SetDirs(dirs)
	go w.reapForRuntime(ctx, dirs)
	w.watcher.Run(ctx)
}

// dirs gives where the runtime looks for its network: what flags say, or else what the runtime says, or else the usual.
func (w *network) dirs(ctx context.Context) (d cni.Dirs, ok bool) {
	d = cni.Dirs{Conf: w.cfg.ConfDir, Bins: w.cfg.BinDirs}
	if d.Conf != "" && len(d.Bins) > 0 {
		return d, true
	}
	select {
	case <-w.n.monitor.Answered():
	case <-ctx.Done():
		return d, false
	}
	info, err := w.n.runtime.Info(ctx)
	if err != nil {
		w.log.Warn("the runtime does not say where it looks for its network", "err", err)
	}
	told := cni.RuntimeDirs(info)
	if d.Conf == "" {
		d.Conf = told.Conf
	}
	if len(d.Bins) == 0 {
		d.Bins = told.Bins
	}
	if d.Conf == "" {
		d.Conf = usualConfDir
	}
	if len(d.Bins) == 0 && w.cfg.Mode == "agent" {
		d.Bins = []string{usualBinDir}
	}
	return d, true
}
