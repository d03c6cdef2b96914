package monitor

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/internal/latest"
)

const (
	// statusInterval is the time between two status calls; RetryInterval while the runtime does not answer or is not
	// ready.
	statusInterval = 10 * time.Second
	// RetryInterval is the time between two calls to a runtime that is not ready.
	RetryInterval = time.Second
	// imagesInterval is the time between two lists of the images if nothing is known to have changed.
	imagesInterval = 5 * time.Minute
	// imagesRetry is the time before the next list after one that failed.
	imagesRetry = 10 * time.Second
	// warnInterval is the time between two lines of the log about a runtime that does not answer, or not well.
	warnInterval = time.Minute
	// settleTime is how long a runtime may say that it is not ready after a new connection, if it was ready before.
	settleTime = 5 * time.Second
	// quickChecks is the number of status calls after CheckSoon, and after a new connection to a runtime that was ready.
	// The first follows after quickFirst, each other after twice the time of the one before: all within three seconds.
	quickChecks = 6
	quickFirst  = 50 * time.Millisecond
)

// Config says what to poll and who receives the answers. All fields but Endpoint are required.
type Config struct {
	Client *cri.Client
	// Endpoint is where the client connects to; the log names other sockets. It may be empty.
	Endpoint string
	// Report receives the answers to Status, with the version of the runtime. It reports whether the runtime and its
	// network are ready. It must not block. It does not receive the answers with which a runtime that was ready before
	// says in the first seconds of a new connection that it is not ready.
	Report func(*runtimeapi.VersionResponse, *runtimeapi.StatusResponse) (ready bool)
	// Ready is called when the runtime and its network become ready. It must not block.
	Ready func()
	// Images receives each complete list of the images, with the time at which the list was requested.
	Images func(all []*runtimeapi.Image, requested time.Time)
	Log    *slog.Logger
}

// Monitor polls one runtime. Its methods may be called from any goroutine. Create it with New.
type Monitor struct {
	cfg     Config
	created time.Time
	version atomic.Pointer[runtimeapi.VersionResponse]
	status  atomic.Pointer[runtimeapi.StatusResponse]
	podCIDR atomic.Pointer[string]
	// connection is the number of the connection over which the version was read, 0 before: behind each connection may be
	// another run of the runtime.
	connection atomic.Uint64

	// These wake a loop, which then looks at the newest state.
	checkSoon, syncCIDR, syncImages latest.Signal

	answered, usable           chan struct{}
	closeAnswered, closeUsable func()
}

// New returns a Monitor; Run makes it work.
func New(cfg Config) *Monitor {
	m := &Monitor{
		cfg:        cfg,
		created:    time.Now(),
		checkSoon:  latest.NewSignal(),
		syncCIDR:   latest.NewSignal(),
		syncImages: latest.NewSignal(),
		answered:   make(chan struct{}),
		usable:     make(chan struct{}),
	}
	m.closeAnswered = sync.OnceFunc(func() { close(m.answered) })
	m.closeUsable = sync.OnceFunc(func() { close(m.usable) })
	return m
}

// Waiting returns an error until the runtime's first answer: what is waited for.
func (m *Monitor) Waiting() error {
	if latest.Closed(m.answered) {
		return nil
	}
	return fmt.Errorf("waiting for the container runtime at %s (%s so far); no pod is managed until it answers",
		m.cfg.Endpoint, time.Since(m.created).Round(time.Second))
}

// Answered is closed after the runtime's first answer.
func (m *Monitor) Answered() <-chan struct{} { return m.answered }

// Usable is closed when the runtime and its network have been ready for the first time.
func (m *Monitor) Usable() <-chan struct{} { return m.usable }

// RuntimeName returns the runtime's own name, such as containerd; empty before its first answer.
func (m *Monitor) RuntimeName() string { return m.version.Load().GetRuntimeName() }

// NoImageSubPath returns why the runtime cannot mount a subPath of an image volume; empty if it can.
func (m *Monitor) NoImageSubPath() string {
	v := m.version.Load()
	return cri.NoImageSubPath(v.GetRuntimeName(), v.GetRuntimeVersion())
}

// Features returns the features of a runtime handler; nil for a handler that the runtime does not list.
func (m *Monitor) Features(handler string) *runtimeapi.RuntimeHandlerFeatures {
	for _, h := range m.status.Load().GetRuntimeHandlers() {
		if h.Name == handler {
			return h.Features
		}
	}
	return nil
}

// SetPodCIDR sets the pod CIDR that the runtime is to know.
func (m *Monitor) SetPodCIDR(cidr string) {
	m.podCIDR.Store(&cidr)
	m.syncCIDR.Set()
}

// ImagesChanged requests a list of the images: one has been pulled or removed.
func (m *Monitor) ImagesChanged() { m.syncImages.Set() }

// CheckSoon requests a status call now and a few more in the next seconds: the runtime is about to notice a change.
func (m *Monitor) CheckSoon() { m.checkSoon.Set() }

// Run polls until ctx ends.
func (m *Monitor) Run(ctx context.Context) {
	var loops sync.WaitGroup
	loops.Go(func() { m.pollStatus(ctx) })
	loops.Go(func() { m.pollImages(ctx) })
	loops.Go(func() { m.keepPodCIDR(ctx) })
	loops.Wait()
}

// pollImages lists the images at the start, at an interval, and when something changed.
func (m *Monitor) pollImages(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-m.syncImages:
		}
		requested := time.Now()
		wait := imagesRetry // a runtime that does not answer is logged by pollStatus
		if all, err := m.cfg.Client.ListImages(ctx); err == nil {
			m.cfg.Images(all, requested)
			wait = imagesInterval
		}
		timer.Reset(wait)
	}
}

// keepPodCIDR passes the pod CIDR to each run of the runtime, and again when it changes. After an error it tries again
// when the runtime has answered the next call of Status.
func (m *Monitor) keepPodCIDR(ctx context.Context) {
	type update struct {
		cidr       string
		connection uint64
	}
	var sent update
	var warned time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.syncCIDR:
		}
		cidr, connection := m.podCIDR.Load(), m.connection.Load()
		if cidr == nil || *cidr == "" || connection == 0 {
			continue
		}
		next := update{*cidr, connection}
		if next == sent {
			continue
		}
		err := m.cfg.Client.UpdateRuntimeConfig(ctx, next.cidr)
		if err == nil || cri.IsUnimplemented(err) {
			sent, warned = next, time.Time{}
		} else if time.Since(warned) >= warnInterval {
			warned = time.Now()
			m.cfg.Log.Warn("cannot pass the pod CIDR to the container runtime, trying again until it accepts it",
				"podCIDR", next.cidr, "err", err)
		}
	}
}
