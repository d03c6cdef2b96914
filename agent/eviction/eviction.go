package eviction

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/eviction/policy"
	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// levelsEvery is how often levels are read without a notification of the kernel, as by the kubelet.
const levelsEvery = 10 * time.Second

// Pods are the pods of the node: the agent's supervisor, where each method is described.
type Pods interface {
	Active(ctx context.Context) []*corev1.Pod
	Staying(ctx context.Context, within time.Duration) []*corev1.Pod
	Evict(ctx context.Context, pod types.UID, e agent.Eviction) (released <-chan struct{})
	RemoveEnded(ctx context.Context)
}

// Node measures the node and what pods use of it. *Machine is the real one.
type Node interface {
	// Levels reads how much memory and how many processes are left, by signal; what cannot be read is left out.
	Levels() map[string]policy.Level
	// WatchMemory calls short each time memory runs short, until ctx ends. It returns an error at once where the kernel
	// does not notify.
	WatchMemory(ctx context.Context, short func()) error
	// DiskLevels reads how much is left of the file systems, by signal. It may have to wait for the runtime; complete is
	// false if that has not said yet where its file systems are.
	DiskLevels(ctx context.Context) (levels map[string]policy.Level, complete bool)
	// RuntimeAnswered reports whether the runtime has answered a call after a time. Without it no pod can end.
	RuntimeAnswered(after time.Time) bool
	// Frees reports whether the removal of images helps against a signal.
	Frees(ctx context.Context, signal string) bool
	// Use measures what pods use of what a signal is about, in their order. For disks it may take minutes, and it returns
	// no pods if the runtime does not say what theirs use: any of them could be the one that uses nothing.
	Use(ctx context.Context, signal string, pods []*corev1.Pod) []policy.Pod
	// Containers measures what the containers of a pod use of the resource of a signal, in bytes by name; what cannot be
	// measured soon is left out.
	Containers(ctx context.Context, signal string, pod *corev1.Pod) map[string]int64
	// Storage measures what these pods take of the node's disk, in their order; what cannot be measured is left out.
	Storage(ctx context.Context, pods []*corev1.Pod) []policy.Storage
}

// Images removes images that no container uses: *images.Collector.
type Images interface {
	RemoveUnused(ctx context.Context) error
}

// Reporter publishes what the evictor finds and does.
type Reporter interface {
	// SetPressure takes whether each condition that is known holds; it is called when that has changed.
	SetPressure(p map[corev1.NodeConditionType]bool)
	NodeEvent(eventType, reason, message string)
	AnnotatedPodEvent(pod *corev1.Pod, eventType, reason, message string, annotations map[string]string)
	// Evicted counts the eviction of a pod because of a signal.
	Evicted(signal string)
}

// Config is what an Evictor needs. All of it is required.
type Config struct {
	Thresholds []policy.Threshold
	// Transition is how long a condition outlives its cause.
	Transition time.Duration
	// MaxGrace caps the grace period of pods at a soft threshold; a negative value means no cap.
	MaxGrace time.Duration
	// EnforceLimits: pods that exceed their limits of local storage are evicted (localStorageCapacityIsolation).
	EnforceLimits bool

	Pods     Pods
	Node     Node
	Images   Images
	Reporter Reporter
	Log      *slog.Logger
}

// Evictor evicts pods. Make one with New.
type Evictor struct {
	cfg Config
	// watches are those with thresholds. Disks have a goroutine of their own: measuring them, and what a runtime frees
	// there, may take long, and memory cannot wait.
	watches []*watch

	mu sync.Mutex
	// pressure has the conditions that have been evaluated or have no threshold.
	pressure policy.Pressure
	// exceeding are the pods that were evicted for their own excess.
	exceeding []leaving
}

// New makes an evictor; Run lets it work.
func New(cfg Config) *Evictor {
	e := &Evictor{cfg: cfg}
	memory := &watch{Evictor: e, levels: func(context.Context) (map[string]policy.Level, bool) {
		return cfg.Node.Levels(), true
	}}
	disk := &watch{Evictor: e, levels: cfg.Node.DiskLevels}
	for _, t := range cfg.Thresholds {
		w := memory
		if policy.OnDisk(t.Signal) {
			w = disk
		}
		w.thresholds = append(w.thresholds, t)
	}
	for _, w := range []*watch{memory, disk} {
		if len(w.thresholds) > 0 {
			e.watches = append(e.watches, w)
		}
	}
	return e
}

// Pressure returns what the node runs short of now; read only. It is safe for use by many goroutines.
func (e *Evictor) Pressure() policy.Pressure {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pressure
}

// Rejection returns why a new pod is refused while the node runs short; nil if it is not.
func (e *Evictor) Rejection(pod *corev1.Pod) *podstate.Rejection {
	if why := policy.Rejection(pod, e.Pressure()); why != "" {
		return &podstate.Rejection{Reason: policy.Reason, Message: why}
	}
	return nil
}

// Run works until ctx ends. Without thresholds it reads no levels.
func (e *Evictor) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	if e.cfg.EnforceLimits {
		all.Go(func() { e.watchLimits(ctx) })
	}
	e.mu.Lock()
	e.report()
	e.mu.Unlock()
	for _, w := range e.watches {
		all.Go(func() { w.run(ctx) })
	}
}

// publish takes what a watch has found, and whether it could look everywhere.
func (e *Evictor) publish(w *watch, found policy.Pressure, complete bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w.pressure, w.looked = found, w.looked || complete
	e.report()
}

// report reports what all watches have found, if that has changed. e.mu is held.
func (e *Evictor) report() {
	now := policy.Pressure{}
	for _, c := range policy.Conditions {
		now[c] = false
	}
	for _, w := range e.watches { // each has conditions of its own
		for i := range w.thresholds {
			c := policy.ConditionOf(w.thresholds[i].Signal)
			if now[c] = w.pressure[c]; !now[c] && !w.looked {
				delete(now, c)
			}
		}
	}
	if maps.Equal(now, e.pressure) {
		return
	}
	if !slices.Equal(now.Holding(), e.pressure.Holding()) {
		e.cfg.Log.Info("node pressure has changed", "memory", now[corev1.NodeMemoryPressure],
			"disk", now[corev1.NodeDiskPressure], "pid", now[corev1.NodePIDPressure])
	}
	e.pressure = now
	e.cfg.Reporter.SetPressure(now)
}

// evict begins to end a pod, with an event and a count.
func (e *Evictor) evict(ctx context.Context, pod *corev1.Pod, signal string, why agent.Eviction,
	annotations map[string]string) (released <-chan struct{}) {
	e.cfg.Log.Warn("evicting pod", "pod", podutil.Name(pod), "podUID", pod.UID, "signal", signal,
		"reason", why.Message, "grace", why.Grace)
	e.cfg.Reporter.AnnotatedPodEvent(pod, corev1.EventTypeWarning, why.Reason, why.Message, annotations)
	e.cfg.Reporter.Evicted(signal)
	return e.cfg.Pods.Evict(ctx, pod.UID, why)
}
