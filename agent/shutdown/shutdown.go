package shutdown

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/internal/backoff"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

const (
	// busRetry is the longest time until the system bus is tried again after it has hung up.
	busRetry = time.Second
	// busTimeout is how long the start of the agent waits for logind.
	busTimeout = 5 * time.Second
	// statusDelay is the least time that the last statuses get to reach the API server.
	statusDelay = time.Second
	// statusPoll is how often it is asked whether statuses are on their way.
	statusPoll = 100 * time.Millisecond
)

// errDown is the reason why the node is not ready, in the kubelet's words.
var errDown = errors.New("node is shutting down")

// Pods are the pods of the node: the agent's supervisor, where each method is described.
type Pods interface {
	AwaitPods(ctx context.Context) bool
	Active(ctx context.Context) []*corev1.Pod
	Evict(ctx context.Context, pod types.UID, e agent.Eviction) (released <-chan struct{})
	CallOff(ctx context.Context, reason string)
}

// Bus is a connection to logind: *systemd.Logind, where each method is described.
type Bus interface {
	ShuttingDown(ctx context.Context) (bool, error)
	AllowDelay(ctx context.Context, d time.Duration) error
	Delay(ctx context.Context) error
	Next(ctx context.Context) (down bool, err error)
	Release() error
	Close()
}

// Reporter publishes that the node goes down.
type Reporter interface {
	// SetShutdown makes the node not ready with a reason, or withdraws that with nil.
	SetShutdown(reason error)
	NodeEvent(eventType, reason, message string)
}

// Config is what a Shutdown needs. All of it is required; without groups a Shutdown does nothing.
type Config struct {
	// Groups are the priorities at which groups of pods begin, sorted, with the time that the pods of each get to end.
	Groups []Group
	// RootDir is the agent's directory, where it keeps how far a shutdown has come.
	RootDir string
	Pods    Pods
	// Connect connects to logind.
	Connect  func(context.Context) (Bus, error)
	Reporter Reporter
	// Unsent reports whether a pod's status is on its way to the API server.
	Unsent func() bool
	Log    *slog.Logger
}

// Shutdown ends the pods when the machine goes down. Its one goroutine does all; Rejection and Interrupted only read.
type Shutdown struct {
	cfg Config
	// down: the machine goes down; resumed: an earlier run of the agent has seen that begin.
	down, resumed atomic.Bool
	// group is the index of the last group that has begun, -1 for none.
	group atomic.Int32
}

// New makes a Shutdown; Run lets it work.
func New(cfg Config) *Shutdown {
	s := &Shutdown{cfg: cfg}
	s.group.Store(-1)
	return s
}

// Times returns when the last graceful shutdown began and ended, as this or an earlier run of the agent wrote them;
// zero if it did not.
func (s *Shutdown) Times() (began, ended time.Time) {
	r := s.load()
	return r.StartTime, r.EndTime
}

// Rejection returns why a new pod is refused while the node goes down; nil if it is not. The static pods that a
// restarted agent finds are not new.
func (s *Shutdown) Rejection(pod *corev1.Pod) *podstate.Rejection {
	if !s.down.Load() || s.resumed.Load() && podutil.IsStatic(pod) {
		return nil
	}
	return &podstate.Rejection{Reason: refusedReason, Message: refusedMessage}
}

// Interrupted returns the eviction of a pod whose group an earlier run of the agent has begun to end; nil for other
// pods.
func (s *Shutdown) Interrupted(pod *corev1.Pod) *agent.Eviction {
	if !s.down.Load() {
		return nil
	}
	i := groupOf(s.cfg.Groups, pod)
	if i > int(s.group.Load()) {
		return nil
	}
	return eviction(s.cfg.Groups[i])
}

func eviction(g Group) *agent.Eviction {
	return &agent.Eviction{Reason: Reason, Message: Message, Grace: g.Grace}
}

func (s *Shutdown) total() (sum time.Duration) {
	for _, g := range s.cfg.Groups {
		sum += g.Grace
	}
	return sum
}

// Resume finds out whether an earlier run of the agent has seen a shutdown begin. It comes before any pod is
// admitted, and does not wait long for a logind that does not answer.
func (s *Shutdown) Resume(ctx context.Context) {
	if len(s.cfg.Groups) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	bus, err := s.cfg.Connect(ctx)
	if err != nil {
		return // Run logs it
	}
	defer bus.Close()
	if down, err := bus.ShuttingDown(ctx); err != nil || !down {
		return
	}
	s.down.Store(true)
	s.resumed.Store(true)
	if r := s.load(); r.EndTime.IsZero() {
		s.group.Store(r.Group)
	}
	s.cfg.Reporter.SetShutdown(errDown)
}

// Run holds the lock that delays shutdowns, and ends the pods when one begins, until ctx ends.
func (s *Shutdown) Run(ctx context.Context) {
	if len(s.cfg.Groups) == 0 {
		return
	}
	backoff.Repeat(ctx, busRetry, func() error { return s.follow(ctx) }, func(err error, retryIn time.Duration) {
		s.cfg.Log.Warn("cannot delay a node shutdown until the pods have ended, trying again", "err", err, "retryIn", retryIn)
	})
}

// follow holds the lock and ends the pods over one connection to the system bus. It asks first whether the machine goes
// down: while there was no connection, signals were missed.
func (s *Shutdown) follow(ctx context.Context) error {
	bus, err := s.cfg.Connect(ctx)
	if err != nil {
		return err
	}
	defer bus.Close()
	if err := bus.AllowDelay(ctx, s.total()); err != nil {
		s.cfg.Log.Warn("logind may cut a node shutdown short", "wanted", s.total(), "err", err)
	}
	defer func() { _ = bus.Release() }() // at an orderly end; a crash leaves the lock with systemd
	down, err := bus.ShuttingDown(ctx)
	for ; err == nil; down, err = bus.Next(ctx) {
		s.see(ctx, down)
		if err := bus.Delay(ctx); err != nil && !down { // once a shutdown has begun, there is no new lock
			return err
		}
		if down {
			s.end(ctx, bus)
		} else {
			s.forgetGroup()
		}
	}
	return err
}

// see takes over whether the machine goes down, and reports a change.
func (s *Shutdown) see(ctx context.Context, down bool) {
	if s.down.Swap(down) == down {
		return
	}
	if down {
		s.report(beginMessage)
		s.cfg.Reporter.SetShutdown(errDown)
		return
	}
	s.report(cancelMessage)
	s.resumed.Store(false)
	s.group.Store(-1)
	s.cfg.Reporter.SetShutdown(nil)
	s.cfg.Pods.CallOff(ctx, Reason)
}

func (s *Shutdown) report(message string) {
	s.cfg.Log.Info(message)
	s.cfg.Reporter.NodeEvent(corev1.EventTypeNormal, eventReason, message)
}

// forgotten reports whether logind no longer wants the machine to go down: it forgets that when it restarts. If it does
// not answer, it may still want it.
func forgotten(ctx context.Context, bus Bus) bool {
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	down, err := bus.ShuttingDown(ctx)
	return err == nil && !down
}

// end ends the groups that are left and lets the machine go down.
func (s *Shutdown) end(ctx context.Context, bus Bus) {
	kept := record{StartTime: time.Now()}
	first := 0
	if old := s.load(); s.resumed.Load() && old.EndTime.IsZero() && old.Group >= 0 {
		kept, first = old, int(old.Group)
		if kept.StartTime.IsZero() {
			kept.StartTime = time.Now()
		}
	}
	bounded, cancel := context.WithTimeout(ctx, s.total())
	defer cancel()
	s.endGroups(bounded, first, func(group int) bool {
		if forgotten(ctx, bus) {
			return false
		}
		s.group.Store(int32(group))
		kept.Group = int32(group)
		s.save(kept)
		return true
	})
	if ctx.Err() != nil || forgotten(ctx, bus) {
		return
	}
	kept.EndTime = time.Now()
	s.save(kept)
	backoff.Sleep(ctx, statusDelay)
	s.awaitStatuses(bounded)
	s.cfg.Log.Info("pods have ended, letting the machine shut down", "took", kept.EndTime.Sub(kept.StartTime))
	if err := bus.Release(); err != nil {
		s.cfg.Log.Warn("cannot release the delay lock of logind", "err", err)
	}
}
