package main

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/kube/node"
)

const (
	// runtimeCheck is how often the runtime is asked how it is; while it does not answer, runtimeRetry.
	runtimeCheck = 10 * time.Second
	runtimeRetry = time.Second
	// imagesEvery is how often the images are listed though no pull has changed them.
	imagesEvery = 5 * time.Minute
)

// runtimeWatch tells the node what the runtime says of itself and which images it has.
type runtimeWatch struct {
	runtime *cri.Client
	node    *node.Reporter
	log     *slog.Logger
	version atomic.Pointer[runtimeapi.VersionResponse]
	pulled  chan struct{}
	// answered is closed when the runtime has answered for the first time.
	answered chan struct{}
}

func newRuntimeWatch(runtime *cri.Client, n *node.Reporter, log *slog.Logger) *runtimeWatch {
	return &runtimeWatch{runtime: runtime, node: n, log: log, pulled: make(chan struct{}, 1), answered: make(chan struct{})}
}

// name is how the runtime calls itself, empty before it has answered.
func (w *runtimeWatch) name() string { return w.version.Load().GetRuntimeName() }

// imagesChanged says that a pull has brought an image.
func (w *runtimeWatch) imagesChanged() {
	select {
	case w.pulled <- struct{}{}:
	default:
	}
}

func (w *runtimeWatch) run(ctx context.Context) {
	images := time.NewTimer(0)
	defer images.Stop()
	ask := time.NewTimer(0)
	defer ask.Stop()
	lost := false
	first := sync.OnceFunc(func() { close(w.answered) })
	for {
		select {
		case <-ctx.Done():
			return
		case <-ask.C:
			err := w.ask(ctx)
			if err != nil && !lost {
				w.log.Warn("the container runtime does not answer; trying again", "err", err, "every", runtimeRetry)
			} else if err == nil && lost {
				w.log.Info("the container runtime answers again")
				images.Reset(0)
			}
			if lost = err != nil; !lost {
				first()
			}
			ask.Reset(pace(lost))
			continue
		case <-w.pulled:
		case <-images.C:
		}
		w.list(ctx)
		images.Reset(imagesEvery)
	}
}

func pace(lost bool) time.Duration {
	if lost {
		return runtimeRetry
	}
	return runtimeCheck
}

// ask asks the runtime how it is and tells the node.
func (w *runtimeWatch) ask(ctx context.Context) error {
	if w.version.Load() == nil {
		v, err := w.runtime.Version(ctx)
		if err != nil {
			w.node.SetRuntime(node.Runtime{Err: err})
			return err
		}
		for _, warning := range cri.VersionWarnings(v.RuntimeName, v.RuntimeVersion) {
			w.log.Warn("the container runtime has a known flaw", "runtime", v.RuntimeName, "version", v.RuntimeVersion, "flaw", warning)
		}
		w.version.Store(v)
	}
	s, err := w.runtime.Status(ctx)
	if err != nil {
		w.node.SetRuntime(node.Runtime{Err: err})
		w.version.Store(nil) // it may come back as another version
		return err
	}
	w.node.SetRuntime(w.state(s))
	return nil
}

func (w *runtimeWatch) state(s *runtimeapi.StatusResponse) node.Runtime {
	v := w.version.Load()
	out := node.Runtime{Name: v.GetRuntimeName(), Version: v.GetRuntimeVersion()}
	for _, c := range s.GetStatus().GetConditions() {
		state := node.RuntimeCondition{OK: c.Status, Reason: c.Reason, Message: c.Message}
		switch c.Type {
		case runtimeapi.RuntimeReady:
			out.Ready = state
		case runtimeapi.NetworkReady:
			out.Network = state
		}
	}
	for _, h := range s.GetRuntimeHandlers() {
		out.Handlers = append(out.Handlers, node.RuntimeHandler{Name: h.Name,
			RecursiveReadOnlyMounts: h.GetFeatures().GetRecursiveReadOnlyMounts(), UserNamespaces: h.GetFeatures().GetUserNamespaces()})
	}
	if f := s.GetFeatures(); f != nil {
		out.SupplementalGroupsPolicy = &f.SupplementalGroupsPolicy
	}
	return out
}

// list tells the node which images the runtime has.
func (w *runtimeWatch) list(ctx context.Context) {
	all, err := w.runtime.ListImages(ctx)
	if err != nil {
		return // the next question how the runtime is says so
	}
	images := make([]node.Image, 0, len(all))
	for _, i := range all {
		images = append(images, node.Image{Digests: i.RepoDigests, Tags: i.RepoTags, Bytes: int64(i.Size)})
	}
	w.node.SetImages(images)
}
