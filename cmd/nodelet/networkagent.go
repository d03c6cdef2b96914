package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/cni"
	"github.com/nodelet/nodelet/kube/status"
)

// tidyEvery is how often the node's network is looked over though nothing has happened.
const tidyEvery = 10 * time.Minute

// networkAgent is the wiring of mode "agent": nodelet is the network.
type networkAgent struct {
	*network
	dir     string
	dirs    cni.Dirs
	source  *cni.Source
	driver  *cni.Driver
	checker *cni.Checker

	reaping sync.Mutex
	tidy    chan struct{}
}

// runAgent lets nodelet be the network until ctx ends.
func (w *network) runAgent(ctx context.Context, dirs cni.Dirs) {
	a := &networkAgent{network: w, dir: w.dir(), dirs: dirs, driver: w.driver(dirs), tidy: make(chan struct{}, 1)}
	a.source = cni.NewSource(cni.SourceConfig{Dir: a.dir, Conf: w.cfg.Conf, BinDirs: dirs.Bins, Forward: cni.DropsForwarded(ctx),
		Changed: a.changed, Log: w.log})
	a.checker = cni.NewChecker(cni.CheckerConfig{Driver: a.driver, Period: w.cfg.CheckPeriod, Found: a.checked, Log: w.log})
	w.checker.Store(a.checker)
	w.source.Store(a.source)
	a.source.SetRanges(w.podRanges())
	server := cni.NewServer(cni.ServerConfig{Socket: a.socket(), Driver: a.driver, Own: a.source.Now, Additional: w.additional,
		Failed: a.reap, Attached: w.attached, Log: w.log})
	var all sync.WaitGroup
	all.Go(func() { a.source.Run(ctx) })
	all.Go(func() { a.checker.Run(ctx) })
	all.Go(func() { cni.WatchTrouble(ctx, w.log, a.checker.Soon) })
	all.Go(func() { a.keepTidy(ctx) })
	all.Go(func() { a.install(ctx) })
	if err := server.Run(ctx); err != nil {
		w.installed.Store(&err)
		w.log.Error("nodelet is no network", "err", err)
	}
	all.Wait()
}

func (w *network) dir() string         { return filepath.Join(w.n.cfg.Paths.Root, "cni") }
func (a *networkAgent) socket() string { return filepath.Join(a.dir, "agent.sock") }

func (w *network) driver(dirs cni.Dirs) *cni.Driver {
	return cni.NewDriver(cni.DriverConfig{Dir: w.dir(), BinDirs: dirs.Bins, CallLimit: w.cfg.CallTimeout, Observe: w.meter.call, Log: w.log})
}

// changed: the node has another network than before.
func (a *networkAgent) changed() {
	a.n.monitor.CheckSoon()
	select {
	case a.tidy <- struct{}{}:
	default:
	}
}

// install makes nodelet the runtime's plugin, and keeps it that until ctx ends.
func (a *networkAgent) install(ctx context.Context) {
	told := func(err error) {
		a.installed.Store(&err)
		a.n.monitor.CheckSoon()
	}
	program, err := os.Executable()
	if err != nil {
		told(fmt.Errorf("find nodelet's own program, to install it as a network plugin: %w", err))
		return
	}
	cni.KeepInstalled(ctx, cni.InstallConfig{ConfDir: a.dirs.Conf, BinDir: a.dirs.Bins[0], Program: program,
		Socket: a.socket(), Dir: a.dir, BinDirs: a.dirs.Bins}, a.log, told)
}

// keepTidy gives back what leaked and keeps the node's rules in place: at the start, when the network changes, and at a slow
// pace.
func (a *networkAgent) keepTidy(ctx context.Context) {
	select {
	case <-a.n.monitor.Answered():
	case <-ctx.Done():
		return
	}
	for {
		a.reap(ctx)
		a.masquerade(ctx)
		select {
		case <-ctx.Done():
			return
		case <-a.tidy:
		case <-time.After(tidyEvery):
		}
	}
}

// masquerade keeps the rules by which pods reach the outside, where the network is nodelet's own.
func (a *networkAgent) masquerade(ctx context.Context) {
	ranges := a.source.Ranges()
	if a.cfg.Conf != "" || len(ranges) == 0 {
		return
	}
	except := a.cfg.NonMasquerade
	if len(except) == 0 && a.n.api != nil {
		except = cni.Private
	}
	if err := cni.Masquerade(ctx, ranges, except); err != nil && ctx.Err() == nil {
		a.log.Warn("pods do not reach the outside", "err", err)
	}
}

// reap gives back what sandboxes have left that are gone.
func (a *networkAgent) reap(ctx context.Context) {
	a.reaping.Lock()
	defer a.reaping.Unlock()
	own, _ := a.source.Now()
	a.reapLeft(ctx, a.driver, cni.Alive{Own: own, Before: cni.Names(a.dirs.Conf)})
}

// reapForRuntime does so on a node where the runtime sets the networks up: what it has lost, and what is left of a time in
// which nodelet was the network.
func (w *network) reapForRuntime(ctx context.Context, dirs cni.Dirs) {
	driver := w.driver(dirs)
	for {
		select {
		case <-w.n.monitor.Answered():
		case <-ctx.Done():
			return
		}
		w.reapLeft(ctx, driver, cni.Alive{Foreign: cni.First(dirs.Conf)})
		select {
		case <-ctx.Done():
			return
		case <-time.After(tidyEvery):
		}
	}
}

func (w *network) reapLeft(ctx context.Context, driver *cni.Driver, alive cni.Alive) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	live, err := w.n.runtime.SandboxIDs(ctx)
	if err != nil {
		return // who is alive is not known now
	}
	alive.Sandboxes = live
	r, err := driver.Reap(ctx, alive)
	if len(r.Sandboxes)+len(r.Addresses)+len(r.Devices) > 0 {
		w.meter.reaped(r)
		w.log.Info("gave back networks of sandboxes that are gone", "sandboxes", r.Sandboxes, "addresses", r.Addresses, "devices", r.Devices)
	}
	if err != nil && ctx.Err() == nil {
		w.log.Warn("networks of sandboxes that are gone could not all be given back; will try again", "err", err)
	}
}

// checked tells people what the plugins' check of a pod's network came to.
func (a *networkAgent) checked(pod cni.Pod, err error) {
	ref := status.Ref{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID)}
	a.n.supervisor.VerdictChanged(types.UID(pod.UID))
	if err != nil {
		a.n.recorder.Event(ref, corev1.EventTypeWarning, "NetworkCheckFailed", "The pod's network is not as it was set up: "+err.Error())
		return
	}
	a.n.recorder.Event(ref, corev1.EventTypeNormal, "NetworkCheckPassed", "The pod's network is as it was set up")
}
