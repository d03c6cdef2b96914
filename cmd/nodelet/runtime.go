package main

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/kube/node"
)

const (
	// runtimeCheck is how often the runtime is asked how it is; while it does not answer or cannot
	// run pods, runtimeRetry.
	runtimeCheck = 10 * time.Second
	runtimeRetry = time.Second
	// imagesEvery is how often the images are listed though no pull has changed them.
	imagesEvery = 5 * time.Minute
	// eagerLooks is how often the runtime is asked after word that it may change its mind, first after eagerFirst, then after
	// twice that and so on: within about three seconds.
	eagerLooks = 6
	eagerFirst = 50 * time.Millisecond
)

// runtimeWatch tells the node what the runtime says of itself and which images it has.
type runtimeWatch struct {
	runtime *cri.Client
	node    *node.Reporter
	log     *slog.Logger
	version atomic.Pointer[runtimeapi.VersionResponse]
	pulled  chan struct{}
	// soon asks for a few looks at short intervals: the runtime is about to notice something. eager counts those left.
	soon  chan struct{}
	eager int
	// network says what the agent knows of the pod network beyond the runtime; nil for nothing.
	network func(runtimeReady bool) error
	// handlers are what the runtime's handlers can do, by name.
	handlers atomic.Pointer[map[string]agent.Handler]
	// cidrs carries the newest pod addresses of the node.
	cidrs chan string
	// began is when the agent began; answered is closed when the runtime has answered for the first time.
	began    time.Time
	answered chan struct{}
	// usable is closed when it has said for the first time that it and its network are ready.
	usable chan struct{}

	// These belong to run: lost is whether the runtime does not answer, ready whether it and its network are, versionOld whether it may be another one since, cidr
	// the node's pod addresses and toldCIDR those that the runtime was told.
	lost, ready, versionOld bool
	cidr, toldCIDR          string
}

func newRuntimeWatch(runtime *cri.Client, n *node.Reporter, log *slog.Logger) *runtimeWatch {
	return &runtimeWatch{runtime: runtime, node: n, log: log, pulled: make(chan struct{}, 1), cidrs: make(chan string, 1),
		soon: make(chan struct{}, 1), began: time.Now(), answered: make(chan struct{}), usable: make(chan struct{}), versionOld: true}
}

// name is how the runtime calls itself, empty before it has answered.
func (w *runtimeWatch) name() string { return w.version.Load().GetRuntimeName() }

// podCIDR tells the node's pod addresses. It has one caller.
func (w *runtimeWatch) podCIDR(cidr string) {
	select {
	case <-w.cidrs:
	default:
	}
	w.cidrs <- cidr
}

// handler tells what a runtime handler can do; one that the runtime does not speak of can nothing special.
func (w *runtimeWatch) handler(name string) agent.Handler {
	if all := w.handlers.Load(); all != nil {
		return (*all)[name]
	}
	return agent.Handler{}
}

// imagesChanged says that a pull has brought an image.
func (w *runtimeWatch) imagesChanged() {
	select {
	case w.pulled <- struct{}{}:
	default:
	}
}

// askSoon has the runtime asked how it is now, and a few times more in the next seconds.
func (w *runtimeWatch) askSoon() {
	select {
	case w.soon <- struct{}{}:
	default:
	}
}

func (w *runtimeWatch) run(ctx context.Context) {
	images := time.NewTimer(0)
	defer images.Stop()
	ask := time.NewTimer(0)
	defer ask.Stop()
	first := sync.OnceFunc(func() { close(w.answered) })
	usable := sync.OnceFunc(func() { close(w.usable) })
	for {
		select {
		case <-ctx.Done():
			return
		case <-ask.C:
			if w.ask(ctx) {
				images.Reset(0)
			}
			if !w.lost {
				first()
				if w.ready {
					usable()
				}
				w.tellCIDR(ctx)
			}
			ask.Reset(w.pace())
			continue
		case w.cidr = <-w.cidrs:
			w.tellCIDR(ctx)
			continue
		case <-w.soon:
			w.eager = eagerLooks
			ask.Reset(0)
			continue
		case <-w.pulled:
		case <-images.C:
		}
		w.list(ctx)
		images.Reset(imagesEvery)
	}
}

// pace is when the runtime is asked next.
func (w *runtimeWatch) pace() time.Duration {
	if w.eager > 0 && !w.lost {
		w.eager--
		return eagerFirst << (eagerLooks - 1 - w.eager)
	}
	if w.lost || !w.ready {
		return runtimeRetry
	}
	if w.eager > 0 {
		w.eager--
		return eagerFirst << (eagerLooks - 1 - w.eager)
	}
	return runtimeCheck
}

// ask asks the runtime how it is and tells the node. It tells whether the runtime has come back just now.
func (w *runtimeWatch) ask(ctx context.Context) (back bool) {
	err := w.try(ctx)
	switch {
	case err != nil && !w.lost:
		w.log.Warn("the container runtime does not answer; trying again", "err", err, "every", runtimeRetry)
	case err == nil && w.lost:
		w.log.Info("the container runtime answers again")
		back = true
	}
	w.lost = err != nil
	return back
}

func (w *runtimeWatch) try(ctx context.Context) error {
	if w.versionOld {
		v, err := w.runtime.Version(ctx)
		if err != nil {
			w.node.SetRuntime(node.Runtime{Err: err})
			return err
		}
		for _, warning := range cri.VersionWarnings(v.RuntimeName, v.RuntimeVersion) {
			w.log.Warn("the container runtime has a known flaw", "runtime", v.RuntimeName, "version", v.RuntimeVersion, "flaw", warning)
		}
		w.version.Store(v)
		w.versionOld, w.toldCIDR = false, ""
	}
	s, err := w.runtime.Status(ctx)
	if err != nil {
		w.node.SetRuntime(node.Runtime{Err: err})
		w.versionOld = true // it may come back as another; until then it keeps its name
		return err
	}
	state := w.state(s)
	w.ready = state.Ready.OK && state.Network.OK
	w.node.SetRuntime(state)
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
			out.Network = w.withNetwork(state)
		}
	}
	handlers := map[string]agent.Handler{}
	for _, h := range s.GetRuntimeHandlers() {
		handlers[h.Name] = agent.Handler{RecursiveReadOnly: h.GetFeatures().GetRecursiveReadOnlyMounts(),
			UserNamespaces: h.GetFeatures().GetUserNamespaces()}
		out.Handlers = append(out.Handlers, node.RuntimeHandler{Name: h.Name,
			RecursiveReadOnlyMounts: h.GetFeatures().GetRecursiveReadOnlyMounts(), UserNamespaces: h.GetFeatures().GetUserNamespaces()})
	}
	w.handlers.Store(&handlers)
	if f := s.GetFeatures(); f != nil {
		out.SupplementalGroupsPolicy = &f.SupplementalGroupsPolicy
	}
	return out
}

// tellCIDR tells the runtime the node's pod addresses, if it does not know them. A runtime that cannot use them is not asked
// again before it is started anew or they change.
func (w *runtimeWatch) tellCIDR(ctx context.Context) {
	if w.lost || w.versionOld || w.cidr == "" || w.cidr == w.toldCIDR {
		return
	}
	err := w.runtime.UpdateRuntimeConfig(ctx, w.cidr)
	if err != nil && !cri.IsUnimplemented(err) {
		w.log.Warn("cannot tell the container runtime the node's pod addresses", "podCIDR", w.cidr, "err", err)
		if cri.IsUnavailable(err) {
			return // it is told when it is back
		}
	}
	w.toldCIDR = w.cidr
}

// withNetwork adds to the runtime's word on its network what the agent knows of it.
func (w *runtimeWatch) withNetwork(c node.RuntimeCondition) node.RuntimeCondition {
	if w.network == nil {
		return c
	}
	err := w.network(c.OK)
	switch {
	case err == nil:
	case c.OK:
		c = node.RuntimeCondition{Reason: "NetworkPluginNotReady", Message: err.Error()}
	default:
		c.Message += "; nodelet sees: " + err.Error()
	}
	return c
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
