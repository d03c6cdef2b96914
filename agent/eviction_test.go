package agent_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/eviction"
	"github.com/nodelet/nodelet/agent/eviction/policy"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// shortage is a node whose disk and memory hold as many of 10 units as no pod of the world has.
type shortage struct {
	*eviction.Evictor
	w       *world
	garbage atomic.Int64 // units that no pod needs
	disk    atomic.Int64 // units of the disks that nothing frees
	layers  atomic.Bool  // ended containers take a unit of the disks, too
	looks   atomic.Int64
	// signals are those with a threshold.
	signals []string
	short   func()
	// measuring is called before disks are measured.
	measuring func()
	storage   func(pods []*corev1.Pod) []policy.Storage

	mu        sync.Mutex
	pressures []policy.Pressure
	events    []string
}

// newShortage begins to evict when less than two units of the signals are left.
func newShortage(w *world, signals ...string) *shortage { return newSlowShortage(w, 0, signals...) }

// newSlowShortage begins to evict when less than two units have been left for so long.
func newSlowShortage(w *world, grace time.Duration, signals ...string) *shortage {
	var all []policy.Threshold
	for _, signal := range signals {
		all = append(all, below("2", signal, grace))
	}
	return newShortageAt(w, all...)
}

// below is a threshold that is met when less than some units have been left for so long.
func below(units, signal string, grace time.Duration) policy.Threshold {
	q := resource.MustParse(units)
	return policy.Threshold{Signal: signal, Value: policy.Amount{Quantity: &q}, Grace: grace}
}

// newShortageAt begins to evict at these thresholds.
func newShortageAt(w *world, thresholds ...policy.Threshold) *shortage {
	s := &shortage{w: w, short: func() {}, measuring: func() {}}
	for _, t := range thresholds {
		s.signals = append(s.signals, t.Signal)
	}
	cfg := eviction.Config{
		Thresholds:    thresholds,
		Transition:    time.Minute,
		MaxGrace:      time.Hour,
		EnforceLimits: len(thresholds) == 0,
		Pods:          w.agent.Supervisor,
		Node:          s,
		Images:        s,
		Reporter:      s,
		Log:           slog.New(slog.NewTextHandler(w.t.Output(), nil)),
	}
	s.Evictor = eviction.New(cfg)
	return s
}

func (s *shortage) left(disk bool) map[string]policy.Level {
	s.looks.Add(1)
	all := map[string]policy.Level{}
	for _, signal := range s.signals {
		available := 10 - int64(len(s.w.running())) - s.garbage.Load()
		if disk {
			available -= s.disk.Load()
		}
		if disk && s.layers.Load() {
			available -= int64(len(s.w.runtime.Containers()) - len(s.w.running()))
		}
		if policy.OnDisk(signal) == disk {
			all[signal] = policy.Level{Available: available, Capacity: 10}
		}
	}
	return all
}

func (s *shortage) Levels() map[string]policy.Level { return s.left(false) }

func (s *shortage) DiskLevels(context.Context) (map[string]policy.Level, bool) {
	return s.left(true), true
}

func (s *shortage) WatchMemory(ctx context.Context, short func()) error {
	s.short = short
	<-ctx.Done()
	return ctx.Err()
}

func (s *shortage) RuntimeAnswered(after time.Time) bool {
	return s.w.agent.runtime.AnsweredAfter(after)
}

func (s *shortage) Frees(context.Context, string) bool { return true }

func (s *shortage) Use(_ context.Context, signal string, pods []*corev1.Pod) (all []policy.Pod) {
	if policy.OnDisk(signal) {
		s.measuring()
	}
	for _, p := range pods {
		use := policy.Usage{Known: true, Memory: int64(len(p.Name)), Disk: int64(len(p.Name))}
		all = append(all, policy.Pod{Pod: p, Usage: use})
	}
	return all
}

func (s *shortage) Storage(_ context.Context, pods []*corev1.Pod) []policy.Storage {
	return s.storage(pods)
}

func (s *shortage) RemoveUnused(context.Context) error {
	s.garbage.Store(0)
	return nil
}

func (s *shortage) SetPressure(p map[corev1.NodeConditionType]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pressures = append(s.pressures, p)
}

func (s *shortage) NodeEvent(_, reason, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, reason+": "+message)
}

func (s *shortage) Containers(context.Context, string, *corev1.Pod) map[string]int64 {
	return map[string]int64{"app": 1 << 20}
}

func (s *shortage) AnnotatedPodEvent(pod *corev1.Pod, _, reason, message string, _ map[string]string) {
	s.NodeEvent("", reason, pod.Name+": "+message)
}

func (s *shortage) Evicted(string) {}

// evictions returns the events about evicted pods.
func (s *shortage) evictions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.events), func(e string) bool { return !strings.HasPrefix(e, "Evicted: ") })
}

// begin lets the evictor work until the returned function is called.
func (s *shortage) begin() (end func()) {
	ctx, cancel := context.WithCancel(s.w.t.Context())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	synctest.Wait()
	return func() { cancel(); <-done }
}

// TestEvictor checks that one pod goes after the other, those first that use most, until there is enough; each says
// why it went, and the condition outlives its cause by the transition period.
func TestEvictor(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		s := newShortage(w, policy.MemoryAvailable)
		defer s.begin()()
		var all []*corev1.Pod
		for _, name := range []string{"a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg", "hhhhhhhh"} {
			all = append(all, apiPod(name))
		}
		w.run(all...)
		w.sleep(time.Minute)
		if n := len(w.running()); n != 8 || len(s.Pressure().Holding()) > 0 {
			t.Fatalf("got %d running pods and pressure %+v, want 8 and none", n, s.Pressure())
		}
		w.run(apiPod("iiiiiiiii"), apiPod("jjjjjjjjjj"))
		w.sleep(time.Second)
		s.short()
		w.sleep(10 * time.Second)
		got := w.running()
		slices.Sort(got)
		want := []string{"a/app#0", "bb/app#0", "ccc/app#0", "dddd/app#0",
			"eeeee/app#0", "ffffff/app#0", "ggggggg/app#0", "hhhhhhhh/app#0"}
		if !slices.Equal(got, want) {
			t.Errorf("running: got %v, want %v", got, want)
		}
		st := w.status(apiPod("jjjjjjjjjj"))
		const message = "The node was low on resource: memory. Threshold quantity: "
		if st.Phase != corev1.PodFailed || st.Reason != "Evicted" || !strings.HasPrefix(st.Message, message) {
			t.Errorf("got status %+v, want Failed, Evicted, %q", st, message)
		}
		if n := len(s.evictions()); n != 2 {
			t.Errorf("got %d events about evictions, want 2", n)
		}
		w.sleep(2 * time.Minute)
		memory := func(short bool) policy.Pressure {
			return policy.Pressure{
				corev1.NodeMemoryPressure: short, corev1.NodeDiskPressure: false, corev1.NodePIDPressure: false,
			}
		}
		pressures := []policy.Pressure{
			{corev1.NodeDiskPressure: false, corev1.NodePIDPressure: false}, memory(false), memory(true), memory(false),
		}
		if !slices.EqualFunc(s.pressures, pressures, maps.Equal) {
			t.Errorf("pressures: got %v, want %v", s.pressures, pressures)
		}
		s.looks.Store(0)
		w.sleep(time.Hour)
		if n := s.looks.Load(); n != 360 {
			t.Errorf("at rest the levels were read %d times in an hour, want 360", n)
		}
	})
}

// TestEvictorSpares checks that no pod is evicted if removing unused images and containers is enough.
func TestEvictorSpares(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		s := newShortage(w, policy.ImageFSAvailable)
		s.garbage.Store(9)
		defer s.begin()()
		w.run(apiPod("web"))
		w.sleep(time.Minute)
		w.checkRunning("web/app#0")
		if !slices.Equal(s.events, []string{"EvictionThresholdMet: Attempting to reclaim ephemeral-storage"}) {
			t.Errorf("events: got %q, want EvictionThresholdMet alone", s.events)
		}
	})
}

// TestEvictorShortensGrace checks that a pod that uses most, and is being deleted with a long grace period, is ended at
// once instead of the pods beside it.
func TestEvictorShortensGrace(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{IgnoresTerm: true})
		s := newShortage(w, policy.MemoryAvailable)
		defer s.begin()()
		large := apiPod("large")
		w.run(large, apiPod("web"))
		w.sleep(time.Second)
		w.delete(large, time.Hour)
		w.sleep(time.Minute)
		if got := len(w.running()); got != 2 {
			t.Errorf("got %d pods running, want both", got)
		}
		s.garbage.Store(7)
		w.sleep(time.Minute)
		w.checkRunning("web/app#0")
	})
}

// TestEvictorSparesCritical checks that where only critical pods are left, none goes.
func TestEvictorSparesCritical(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		s := newShortage(w, policy.PIDAvailable)
		s.garbage.Store(9)
		defer s.begin()()
		w.run(staticPod("web", "0123"))
		w.sleep(time.Minute)
		w.checkRunning("web/app#0")
		if !s.Pressure()[corev1.NodePIDPressure] {
			t.Error("got no pressure of processes")
		}
	})
}

// TestNoThresholds checks that without thresholds nothing is read at all.
func TestNoThresholds(t *testing.T) {
	s := &shortage{}
	eviction.New(eviction.Config{Node: s, Reporter: s}).Run(t.Context())
	if n := s.looks.Load(); n != 0 {
		t.Errorf("levels are read %d times, want never", n)
	}
}

// TestDiskDoesNotDelayMemory checks that while disks are measured, however long that takes, a pod goes for memory.
func TestDiskDoesNotDelayMemory(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		s := newShortage(w, policy.NodeFSAvailable, policy.MemoryAvailable)
		measured := make(chan struct{})
		s.measuring = func() { <-measured }
		var all []*corev1.Pod
		for i := range 9 {
			all = append(all, apiPod(fmt.Sprint("pod", i)))
		}
		w.run(all[:8]...)
		w.sleep(time.Minute)
		s.disk.Store(1)
		end := s.begin()
		w.run(all...)
		w.sleep(time.Minute)
		if got := len(w.running()); got != 8 {
			t.Errorf("while disks are measured %d pods run, want 8", got)
		}
		short := []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure}
		if got := s.Pressure().Holding(); !slices.Equal(got, short) {
			t.Errorf("pressure: got %v, want %v", got, short)
		}
		close(measured)
		end()
	})
}

// passedOver calls check with a node that runs short of memory, at a hard and at a soft threshold. Three pods run, of
// which stuck-pod goes first.
func passedOver(t *testing.T, check func(w *world, s *shortage)) {
	for name, grace := range map[string]time.Duration{"hard": 0, "soft": time.Minute} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				s := newSlowShortage(w, grace, policy.MemoryAvailable)
				s.garbage.Store(6)
				w.run(apiPod("stuck-pod"), apiPod("b"), apiPod("c"))
				w.sleep(time.Minute)
				check(w, s)
			})
		})
	}
}

// sticks makes the runtime not stop the container of stuck-pod.
func (w *world) sticks() *fake.Fault {
	for _, c := range w.runtime.Containers() {
		if c.Labels[podutil.LabelPodName] == "stuck-pod" {
			return w.runtime.Inject(&fake.Fault{Verb: "StopContainer", Object: c.Id, Hang: true})
		}
	}
	w.t.Fatal("stuck-pod does not run")
	return nil
}

// TestStuckPodIsPassedOver checks that a pod that does not end is evicted once, and does not keep the next from being
// evicted.
func TestStuckPodIsPassedOver(t *testing.T) {
	passedOver(t, func(w *world, s *shortage) {
		w.sticks()
		defer s.begin()()
		w.sleep(10 * time.Minute)
		if got := s.evictions(); len(got) != 2 {
			w.t.Errorf("got evictions %q, want two", got)
		}
		if got := w.running(); len(got) != 2 || !slices.Contains(got, "stuck-pod/app#0") {
			w.t.Errorf("got %q running, want the stuck pod and one other", got)
		}
	})
}

// TestSilentRuntimeEvictsOnePod checks that no pod is passed over while the runtime answers nothing, also if it has
// answered in the first seconds of the eviction: the next one would not end either, and all would when it answers
// again.
func TestSilentRuntimeEvictsOnePod(t *testing.T) {
	for name, answers := range map[string]time.Duration{"silent": 0, "silent soon": 12 * time.Second} {
		t.Run(name, func(t *testing.T) {
			passedOver(t, func(w *world, s *shortage) {
				stop := w.sticks()
				var silent *fake.Fault
				if answers == 0 {
					silent = w.runtime.Inject(&fake.Fault{Hang: true})
				}
				defer s.begin()()
				for len(s.evictions()) == 0 {
					w.sleep(time.Second)
				}
				if w.sleep(answers); silent == nil {
					if _, _, err := w.agent.runtime.List(w.t.Context()); err != nil {
						w.t.Error(err)
					}
					silent = w.runtime.Inject(&fake.Fault{Hang: true})
				}
				w.sleep(10 * time.Minute)
				if got := s.evictions(); len(got) != 1 {
					w.t.Errorf("without an answer of the runtime: got evictions %q, want one", got)
				}
				w.runtime.Release(stop)
				w.runtime.Release(silent)
				w.sleep(5 * time.Minute)
				if got := w.running(); len(got) != 2 || slices.Contains(got, "stuck-pod/app#0") {
					w.t.Errorf("with an answer of the runtime: got %q running, want all but stuck-pod", got)
				}
			})
		})
	}
}

// TestCompletedPodIsNotEvicted checks that a pod of which nothing runs any more is not evicted, also while its volume
// cannot be unmounted and the API server has not heard of its end.
func TestCompletedPodIsNotEvicted(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		s := newShortage(w, policy.MemoryAvailable)
		w.run(apiPod("completed", withRestart(corev1.RestartPolicyNever)), apiPod("web"))
		w.sleep(time.Second)
		w.keepVolume(apiPod("completed"))
		for _, c := range w.runtime.Containers() {
			if c.Labels[podutil.LabelPodName] == "completed" {
				w.runtime.ExitContainer(c.Id, 0, "")
			}
		}
		w.sleep(time.Second)
		s.garbage.Store(8)
		defer s.begin()()
		w.sleep(time.Minute)
		if got := s.evictions(); len(got) != 1 || !strings.HasPrefix(got[0], "Evicted: web:") {
			t.Errorf("got evictions %q, want that of web", got)
		}
	})
}

// TestEvictedPodIsAwaited checks that no other pod is evicted while one that has just been evicted for another reason,
// such as its own limits, releases its resources.
func TestEvictedPodIsAwaited(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		s := newShortage(w, policy.MemoryAvailable)
		w.run(apiPod("large"), apiPod("web"))
		w.sleep(time.Minute)
		w.runtime.Inject(&fake.Fault{Verb: "StopContainer", Delay: 10 * time.Second})
		w.agent.Evict(t.Context(), apiPod("large").UID, agent.Eviction{Reason: "Evicted", Grace: time.Second})
		w.sleep(2 * time.Second)
		s.garbage.Store(7)
		defer s.begin()()
		w.sleep(time.Minute)
		w.checkRunning("web/app#0")
	})
}

// TestEndedPodsGoFirst checks that for disk, what ended pods have left is removed before a running pod is evicted.
func TestEndedPodsGoFirst(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		s := newShortage(w, policy.NodeFSAvailable)
		w.run(apiPod("job", withRestart(corev1.RestartPolicyNever)), apiPod("web"))
		w.sleep(time.Second)
		for _, c := range w.runtime.Containers() {
			if c.Labels["io.kubernetes.pod.name"] == "job" {
				w.runtime.ExitContainer(c.Id, 0, "")
			}
		}
		w.sleep(time.Minute)
		w.publish(w.agent)
		w.deliver()
		w.sleep(time.Second)
		s.garbage.Store(9) // RemoveUnused frees it
		defer s.begin()()
		w.sleep(time.Minute)
		w.checkRunning("web/app#0")
		if got := len(w.runtime.Containers()); got != 1 {
			t.Errorf("the runtime has %d containers, want web's alone", got)
		}
	})
}

// TestEvictedPodMakesRoom checks that the layers of an evicted pod are removed before the next pod is evicted, also
// while the API server has not heard of the eviction.
func TestEvictedPodMakesRoom(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		s := newShortage(w, policy.ImageFSAvailable)
		s.layers.Store(true)
		w.run(apiPod("large"), apiPod("web"))
		w.sleep(time.Minute)
		s.disk.Store(7)
		defer s.begin()()
		w.sleep(time.Minute)
		w.checkRunning("web/app#0")
		if st := w.status(apiPod("large")); st.Phase != corev1.PodFailed || st.Reason != "Evicted" ||
			len(st.ContainerStatuses) != 1 || st.ContainerStatuses[0].State.Terminated == nil {
			t.Errorf("got status %+v, want Failed, Evicted, with the end of the container", st)
		}
		if got := len(w.runtime.Containers()); got != 1 {
			t.Errorf("the runtime has %d containers, want web's alone", got)
		}
	})
}

// TestSoftEvictionWaits checks that the next pod is evicted at a soft threshold only when the one before has had its
// grace period.
func TestSoftEvictionWaits(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{IgnoresTerm: true})
		slow := func(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = ptr(int64(300)) }
		s := newSlowShortage(w, time.Minute, policy.MemoryAvailable)
		s.garbage.Store(7)
		defer s.begin()()
		w.run(apiPod("large", slow), apiPod("web", slow))
		w.sleep(6 * time.Minute)
		if got := s.evictions(); len(got) != 1 || len(w.running()) != 2 {
			t.Errorf("within the grace period: got %q, %d pods running, want one eviction, both pods", got, len(w.running()))
		}
		w.sleep(5 * time.Minute)
		w.checkRunning("web/app#0")
		if got := s.evictions(); len(got) != 1 {
			t.Errorf("after the grace period: got %q, want one eviction", got)
		}
	})
}

// TestHardThresholdDuringSoftEviction checks that a hard threshold is acted on at once while a pod uses the grace
// period that it has at a soft one.
func TestHardThresholdDuringSoftEviction(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{IgnoresTerm: true})
		slow := func(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = ptr(int64(300)) }
		s := newShortageAt(w, below("2", policy.MemoryAvailable, time.Minute), below("1", policy.MemoryAvailable, 0))
		s.garbage.Store(7)
		defer s.begin()()
		w.run(apiPod("large", slow), apiPod("web", slow))
		for seconds := 0; seconds < 120 && len(s.evictions()) == 0; seconds++ {
			w.sleep(time.Second)
		}
		if got := len(w.running()); len(s.evictions()) != 1 || got != 2 {
			t.Fatalf("at the soft threshold: got %q, %d pods running, want one eviction, both pods", s.evictions(), got)
		}
		s.garbage.Store(8)
		s.short()
		w.sleep(5 * time.Second)
		w.checkRunning("web/app#0")
	})
}
