package manager

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/cni"
	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/internal/latest"
	"github.com/nodelet/nodelet/internal/periodic"
)

// agentMode is ModeAgent: nodelet is the runtime's network plugin.
type agentMode struct {
	*Manager
	dirs    cni.Dirs
	source  *cni.Source
	driver  *cni.Driver
	checker *cni.Checker
	// failure is why nodelet cannot be the runtime's plugin, unserved why the plugin cannot reach it; nil if it can.
	failure, unserved atomic.Pointer[error]
	// unable is why the plugins of the network cannot set up pods; nil if they can, or have not been asked yet.
	unable atomic.Pointer[error]

	// releasing is held during a clean-up; clean requests one, incomplete one within cleanupRetry.
	releasing         sync.Mutex
	clean, incomplete latest.Signal
	// shutIn is why pods cannot reach other networks, so that it is logged once. Only cleanUp uses it.
	shutIn string
}

func newAgentMode(m *Manager, dirs cni.Dirs) *agentMode {
	a := &agentMode{
		Manager:    m,
		dirs:       dirs,
		driver:     m.driver(dirs),
		clean:      latest.NewSignal(),
		incomplete: latest.NewSignal(),
	}
	var fallback []netip.Prefix
	if m.cfg.Core == nil && m.cfg.Conf == "" && len(m.cfg.PodCIDRs) == 0 {
		fallback = []netip.Prefix{defaultRange}
	}
	a.source = cni.NewSource(cni.SourceConfig{
		Dir:      m.cfg.Dir,
		Conf:     m.cfg.Conf,
		BinDirs:  dirs.Bins,
		Fallback: fallback,
		Changed:  a.networkChanged,
		Log:      m.log,
	})
	a.checker = cni.NewChecker(cni.CheckerConfig{
		Driver: a.driver,
		Period: m.cfg.CheckPeriod,
		Found:  a.checked,
		Log:    m.log,
	})
	return a
}

func (a *agentMode) problem(bool) error {
	if _, err := a.source.Now(); err != nil {
		return err
	}
	for _, p := range []*atomic.Pointer[error]{&a.failure, &a.unserved, &a.unable} {
		if err := p.Load(); err != nil {
			return *err
		}
	}
	return nil
}

func (a *agentMode) podProblem(uid string) string { return a.checker.Problem(uid) }

func (a *agentMode) setRanges(ranges []netip.Prefix) { a.source.SetRanges(ranges) }

func (a *agentMode) run(ctx context.Context) {
	server := cni.NewServer(cni.ServerConfig{
		Socket:     a.socket(),
		Driver:     a.driver,
		Own:        a.source.Now,
		Additional: a.additional,
		Exhausted:  func(ctx context.Context) { a.releaseRemoved(ctx) },
		Incomplete: a.incomplete.Set, // a call that failed may have left something
		Attached:   a.annotations.add,
		Serving:    func(err error) { a.setFailure(&a.unserved, err) },
		Log:        a.log,
	})
	a.annotateAgain()
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { a.source.Run(ctx) })
	all.Go(func() { a.checker.Run(ctx) })
	all.Go(func() { cni.WatchTrouble(ctx, a.log, a.checker.Soon) })
	all.Go(func() { a.annotations.run(ctx, a.driver.HasRecord) })
	all.Go(func() { a.cleanUp(ctx) })
	all.Go(func() { a.install(ctx) })
	all.Go(func() { a.followPlugins(ctx) })
	server.Run(ctx)
}

// annotateAgain adds the pods of all records: an earlier process may have stopped before it annotated them.
func (a *agentMode) annotateAgain() {
	records, err := a.driver.Records()
	if err != nil {
		a.log.Warn("cannot read all records of pod networks", "err", err)
	}
	for _, r := range records {
		if r.Whole {
			a.annotations.add(r)
		}
	}
}

// setFailure stores why the network does not work in one of the fields for it.
func (a *agentMode) setFailure(in *atomic.Pointer[error], err error) {
	if err == nil {
		in.Store(nil)
	} else {
		in.Store(&err)
	}
	a.cfg.CheckSoon()
}

// followPlugins asks the plugins of the network at intervals, until ctx ends.
func (a *agentMode) followPlugins(ctx context.Context) {
	for {
		a.askPlugins(ctx)
		if !backoff.Sleep(ctx, periodic.Until(statusInterval)) {
			return
		}
	}
}

// askPlugins asks the plugins of the network whether they can set up pods, if its CNI version has that (1.1.0). The
// runtime does not: it knows nodelet's plugin only.
func (a *agentMode) askPlugins(ctx context.Context) {
	own, _ := a.source.Now()
	if own == nil {
		return // problem says why
	}
	err := a.driver.Status(ctx, own)
	if err != nil {
		err = fmt.Errorf("a plugin of network %s cannot set up pods: %w", own.Name, err)
	}
	var before error
	if p := a.unable.Load(); p != nil {
		before = *p
	}
	if ctx.Err() == nil && fmt.Sprint(err) != fmt.Sprint(before) {
		a.setFailure(&a.unable, err)
	}
}

// networkChanged is called when the network configuration of the node has changed.
func (a *agentMode) networkChanged() {
	a.cfg.CheckSoon()
	a.clean.Set()
}

// install makes nodelet the runtime's plugin, and repeats that whenever it is undone, until ctx ends.
func (a *agentMode) install(ctx context.Context) {
	program, err := os.Executable()
	if err != nil {
		a.setFailure(&a.failure, fmt.Errorf("find nodelet's own program, to install it as a network plugin: %w", err))
		return
	}
	cni.KeepInstalled(ctx, cni.InstallConfig{
		ConfDir: a.dirs.Conf,
		BinDir:  a.dirs.Bins[0],
		Program: program,
		Socket:  a.socket(),
		Dir:     a.cfg.Dir,
		BinDirs: a.dirs.Bins,
	}, a.log, func(err error) { a.setFailure(&a.failure, err) })
}

// cleanUp releases the networks of removed sandboxes and repairs the masquerade rules: at the start, when the network
// changes, after failures, and at intervals.
func (a *agentMode) cleanUp(ctx context.Context) {
	select {
	case <-a.cfg.Answered:
	case <-ctx.Done():
		return
	}
	for {
		next := a.masquerade(ctx) // first: pods need it, and a release may take long
		next = min(next, a.releaseRemoved(ctx))
		if a.await(ctx, next); ctx.Err() != nil {
			return
		}
	}
}

// await waits until the next clean-up is due.
func (a *agentMode) await(ctx context.Context, next time.Duration) {
	due := time.NewTimer(next)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.clean:
			return
		case <-due.C:
			return
		case <-a.incomplete:
			if next > cleanupRetry {
				next = cleanupRetry
				due.Reset(next)
			}
		}
	}
}

// masquerade installs the rules by which pods reach other networks. If the user configures the network, it removes what
// an earlier process has installed. It returns when to do it again.
func (a *agentMode) masquerade(ctx context.Context) (next time.Duration) {
	if a.cfg.Conf != "" {
		return a.removeGenerated(ctx)
	}
	if len(a.source.Ranges()) == 0 {
		return cleanupInterval
	}
	ranges, err := a.source.AllRanges()
	except := a.cfg.NonMasquerade
	if len(except) == 0 {
		except = a.cluster.unmasqueraded()
	}
	err = errors.Join(err, cni.Masquerade(ctx, ranges, except), cni.AllowForwarding(ctx, ranges))
	if err == nil {
		a.shutIn = ""
		return cleanupInterval
	}
	if text := err.Error(); text != a.shutIn && ctx.Err() == nil {
		a.shutIn = text
		a.log.Warn("cannot set up masquerading and forwarding; pods cannot reach other networks",
			"err", err, "retryIn", cleanupRetry)
	}
	return cleanupRetry
}

// releaseRemoved releases the networks of removed sandboxes, and returns when to do it again.
func (a *agentMode) releaseRemoved(ctx context.Context) (next time.Duration) {
	a.releasing.Lock()
	defer a.releasing.Unlock()
	own, _ := a.source.Now()
	return a.release(ctx, a.driver, cni.Alive{Own: own})
}

// checked reports the result of a check of a pod's network.
func (a *agentMode) checked(pod cni.Pod, err error) {
	a.cfg.PodChanged(pod.UID)
	if err != nil {
		a.cfg.Event(pod, corev1.EventTypeWarning, "NetworkCheckFailed", "Pod network check failed: "+err.Error())
		return
	}
	a.cfg.Event(pod, corev1.EventTypeNormal, "NetworkCheckPassed", "Pod network check passed")
}
