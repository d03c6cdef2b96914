package agent_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/eviction"
)

// shortage is a node whose disk and memory hold as many of 10 units as no pod of the world has.
type shortage struct {
	*agent.Evictor
	w         *world
	garbage   atomic.Int64 // units that no pod needs
	looks     atomic.Int64
	pressures []eviction.Pressure
	events    []string
	short     func()
}

// newShortage begins to evict when less than two units of a signal are left.
func newShortage(w *world, signal string) *shortage {
	two := resource.MustParse("2")
	s := &shortage{w: w, short: func() {}}
	s.Evictor = agent.NewEvictor(w.life.Supervisor, agent.EvictorConfig{
		Thresholds: []eviction.Threshold{{Signal: signal, Value: eviction.Amount{Quantity: &two}}},
		Transition: time.Minute,
		Levels: func(context.Context) map[string]eviction.Level {
			s.looks.Add(1)
			return map[string]eviction.Level{signal: {Available: 10 - int64(len(w.running())) - s.garbage.Load(), Capacity: 10}}
		},
		Use: func(_ context.Context, _ string, pods []*corev1.Pod) (all []eviction.Pod) {
			for _, p := range pods {
				all = append(all, eviction.Pod{Pod: p, Usage: eviction.Usage{Known: true, Memory: int64(len(p.Name)), Disk: int64(len(p.Name))}})
			}
			return all
		},
		Reclaim: func(context.Context) error { s.garbage.Store(0); return nil },
		WatchMemory: func(ctx context.Context, short func()) error {
			s.short = short
			<-ctx.Done()
			return ctx.Err()
		},
		Tell:  func(p eviction.Pressure) { s.pressures = append(s.pressures, p) },
		Event: func(_, reason, message string) { s.events = append(s.events, reason+": "+message) },
		Log:   slog.New(slog.NewTextHandler(w.t.Output(), nil)),
	})
	return s
}

// begin lets the evictor work until the returned function is called.
func (s *shortage) begin() (end func()) {
	ctx, cancel := context.WithCancel(s.w.t.Context())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	synctest.Wait()
	return func() { cancel(); <-done }
}

// TestEvictor: one pod goes after the other, those first that use most, until there is enough; each says why it went, and the
// condition outlives its cause by the transition period.
func TestEvictor(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		s := newShortage(w, eviction.MemoryAvailable)
		defer s.begin()()
		var all []*corev1.Pod
		for _, name := range []string{"a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg", "hhhhhhhh"} {
			all = append(all, apiPod(name))
		}
		w.run(all...)
		w.sleep(time.Minute)
		if n := len(w.running()); n != 8 || s.Pressure().Any() {
			t.Fatalf("%d pods run, pressure %+v", n, s.Pressure())
		}
		w.run(apiPod("iiiiiiiii"), apiPod("jjjjjjjjjj"))
		w.sleep(time.Second)
		s.short()
		w.sleep(10 * time.Second)
		got := w.running()
		slices.Sort(got)
		if want := "a/app#0 bb/app#0 ccc/app#0 dddd/app#0 eeeee/app#0 ffffff/app#0 ggggggg/app#0 hhhhhhhh/app#0"; strings.Join(got, " ") != want {
			t.Errorf("running: %v", got)
		}
		st := w.status(apiPod("jjjjjjjjjj"))
		if st.Phase != corev1.PodFailed || st.Reason != "Evicted" || !strings.HasPrefix(st.Message, "The node was low on resource: memory. Threshold quantity: ") {
			t.Errorf("evicted so: %+v", st)
		}
		if n := len(w.told("Evicted")); n != 2 {
			t.Errorf("%d events about evictions", n)
		}
		w.sleep(2 * time.Minute)
		if want := []eviction.Pressure{{Memory: true}, {}}; !slices.Equal(s.pressures, want) {
			t.Errorf("pressures: %+v", s.pressures)
		}
		s.looks.Store(0)
		w.sleep(time.Hour)
		if n := s.looks.Load(); n != 360 {
			t.Errorf("at rest the levels are read %d times an hour", n)
		}
	})
}

// TestEvictorSpares: where it helps to remove what nobody needs, no pod goes.
func TestEvictorSpares(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		s := newShortage(w, eviction.ImageFSAvailable)
		s.garbage.Store(9)
		defer s.begin()()
		w.run(apiPod("web"))
		w.sleep(time.Minute)
		w.checkRunning("web/app#0")
		if !slices.Equal(s.events, []string{"EvictionThresholdMet: Attempting to reclaim ephemeral-storage"}) {
			t.Errorf("events: %q", s.events)
		}
	})
}

// TestEvictorSparesCritical: where only critical pods are left, none goes.
func TestEvictorSparesCritical(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		s := newShortage(w, eviction.PIDAvailable)
		s.garbage.Store(9)
		defer s.begin()()
		w.run(staticPod("web", "0123"))
		w.sleep(time.Minute)
		w.checkRunning("web/app#0")
		if !s.Pressure().PID {
			t.Error("nobody is told")
		}
	})
}

// TestNoThresholds: without thresholds nothing is read at all.
func TestNoThresholds(t *testing.T) {
	e := agent.NewEvictor(nil, agent.EvictorConfig{Levels: func(context.Context) map[string]eviction.Level {
		t.Error("the levels are read")
		return nil
	}, WatchMemory: func(context.Context, func()) error { return nil }})
	e.Run(t.Context())
}
