package manager

import (
	"context"
	"net/netip"
	"sync"

	"github.com/nodelet/nodelet/cni"
	"github.com/nodelet/nodelet/internal/backoff"
)

// runtimeMode is ModeRuntime: the runtime calls the plugins, and the manager watches their configuration.
type runtimeMode struct {
	*Manager
	dirs    cni.Dirs
	watcher *cni.Watcher
}

func newRuntimeMode(m *Manager, dirs cni.Dirs) *runtimeMode {
	return &runtimeMode{Manager: m, dirs: dirs, watcher: cni.NewWatcher(dirs, m.cfg.CheckSoon, m.log)}
}

func (r *runtimeMode) problem(runtimeReady bool) error { return r.watcher.Problem(runtimeReady) }
func (r *runtimeMode) podProblem(string) string        { return "" }
func (r *runtimeMode) setRanges([]netip.Prefix)        {}

func (r *runtimeMode) run(ctx context.Context) {
	if removed, err := cni.Uninstall(r.dirs.Conf); err != nil {
		r.log.Warn("cannot remove nodelet from the runtime's plugins", "err", err)
	} else if removed {
		r.log.Info("removed nodelet from the runtime's plugins")
	}
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { r.cleanUp(ctx) })
	r.watcher.Run(ctx)
}

// cleanUp releases what the runtime has lost, and what is left of a time in ModeAgent.
func (r *runtimeMode) cleanUp(ctx context.Context) {
	driver := r.driver(r.dirs)
	select {
	case <-r.cfg.Answered:
	case <-ctx.Done():
		return
	}
	for {
		next := r.release(ctx, driver, cni.Alive{Foreign: cni.First(r.dirs.Conf)})
		if !backoff.Sleep(ctx, min(next, r.removeGenerated(ctx))) {
			return
		}
	}
}
