package agent_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/shutdown"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/pods"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// fakeLogind is a logind whose shutdowns the test begins and calls off.
type fakeLogind struct {
	signals chan bool
	// cut ends the connection to it.
	cut chan error
	// silent: it does not answer.
	silent bool

	mu           sync.Mutex
	down, locked bool
	releases     int
}

func newLogind() *fakeLogind { return &fakeLogind{signals: make(chan bool, 4), cut: make(chan error)} }

func (l *fakeLogind) ShuttingDown(ctx context.Context) (bool, error) {
	if l.silent {
		<-ctx.Done()
		return false, ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down, nil
}

func (l *fakeLogind) AllowDelay(context.Context, time.Duration) error { return nil }

func (l *fakeLogind) Delay(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.locked = true
	return nil
}

func (l *fakeLogind) Next(ctx context.Context) (bool, error) {
	select {
	case down := <-l.signals:
		return down, nil
	case err := <-l.cut:
		return false, err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (l *fakeLogind) Release() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.locked {
		l.locked = false
		l.releases++
	}
	return nil
}

func (l *fakeLogind) Close() {}

// isLocked reports whether the agent delays the shutdown.
func (l *fakeLogind) isLocked() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.locked
}

// signal begins a shutdown or calls it off.
func (l *fakeLogind) signal(down bool) {
	l.mu.Lock()
	l.down = down
	l.mu.Unlock()
	l.signals <- down
	synctest.Wait()
}

// shutdowns is the Shutdown of one run of the agent, with what it reports.
type shutdowns struct {
	*shutdown.Shutdown
	// unsent: not all statuses have reached the API server.
	unsent  atomic.Bool
	mu      sync.Mutex
	reasons []error
	events  []string
}

func (s *shutdowns) SetShutdown(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reasons = append(s.reasons, reason)
}

func (s *shutdowns) NodeEvent(_, reason, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, reason+": "+message)
}

// reported returns what the node says of a shutdown; nil for nothing.
func (s *shutdowns) reported() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.reasons) == 0 {
		return nil
	}
	return s.reasons[len(s.reasons)-1]
}

// watchShutdowns begins to watch for shutdowns until the returned function is called.
func (w *world) watchShutdowns(bus *fakeLogind, groups []shutdown.Group) (s *shutdowns, end func()) {
	s = &shutdowns{}
	s.Shutdown = shutdown.New(shutdown.Config{
		Groups:   groups,
		RootDir:  w.root,
		Pods:     w.agent.Supervisor,
		Connect:  func(context.Context) (shutdown.Bus, error) { return bus, nil },
		Reporter: s,
		Unsent:   s.unsent.Load,
		Log:      slog.New(slog.NewTextHandler(w.t.Output(), nil)),
	})
	ctx, cancel := context.WithCancel(w.t.Context())
	s.Resume(ctx)
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	synctest.Wait()
	return s, func() { cancel(); <-done }
}

// restartInShutdown restarts the agent while the machine goes down, and watches for shutdowns until the returned
// function is called. The runtime must not have listed its pods before this returns.
func (w *world) restartInShutdown(bus *fakeLogind, groups []shutdown.Group) (end func()) {
	var s *shutdowns
	w.doomed = func(pod *corev1.Pod) *agent.Eviction { return s.Interrupted(pod) }
	w.restart()
	s, end = w.watchShutdowns(bus, groups)
	return end
}

// TestShutdownGroups checks that lower priorities end first, a group that is done early lets the next begin, one that
// takes too long as well; then the machine may go down. New pods are refused meanwhile.
func TestShutdownGroups(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{TermTakes: 3 * time.Second})
		low, high := apiPod("low"), apiPod("high", withPriority(1000))
		critical := apiPod("critical", withPriority(2000000000))
		w.run(low, high, critical)
		w.sleep(time.Second)
		bus := newLogind()
		s, end := w.watchShutdowns(bus, []shutdown.Group{
			{Priority: 0, Grace: time.Minute},
			{Priority: 500, Grace: time.Minute},
			{Priority: 1000, Grace: 2 * time.Second},
			{Priority: 2000000000, Grace: time.Minute},
		})
		defer end()
		if s.Rejection(low) != nil {
			t.Error("before the shutdown: got a pod refused, want it admitted")
		}
		began := time.Now()
		bus.signal(true)
		if r := s.Rejection(low); r == nil || r.Reason != "NodeShutdown" {
			t.Errorf("a new pod during the shutdown: got %+v, want NodeShutdown", r)
		}
		for _, step := range []struct {
			at      time.Duration
			running []string
		}{
			{2900 * time.Millisecond, []string{"critical/app#0", "high/app#0", "low/app#0"}},
			{3100 * time.Millisecond, []string{"critical/app#0", "high/app#0"}},
			{5100 * time.Millisecond, []string{"critical/app#0"}}, // high has had its 2 s and was killed
			{8100 * time.Millisecond, nil},
		} {
			w.sleep(step.at - time.Since(began))
			got := w.running()
			if slices.Sort(got); !slices.Equal(got, step.running) {
				t.Errorf("after %s: got %v running, want %v", step.at, got, step.running)
			}
		}
		if !bus.isLocked() {
			t.Error("got the inhibitor lock released before the last statuses are sent, want it held")
		}
		w.sleep(2 * time.Second)
		if bus.isLocked() {
			t.Error("got the inhibitor lock held after all pods have ended, want it released")
		}
		for _, pod := range []*corev1.Pod{low, high, critical} {
			st := w.status(pod)
			if st.Phase != corev1.PodFailed || st.Reason != shutdown.Reason || st.Message != shutdown.Message {
				t.Errorf("%s: got %s %s %q", pod.Name, st.Phase, st.Reason, st.Message)
			}
		}
		if got := s.reported(); got == nil || got.Error() != "node is shutting down" {
			t.Errorf("the node reports %v, want that it is shutting down", got)
		}
	})
}

// TestShutdownWaitsForStatuses checks that the next group ends, and the machine goes down, once statuses are sent,
// or the time for that is over.
func TestShutdownWaitsForStatuses(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(apiPod("low"), apiPod("high", withPriority(1000)))
		w.sleep(time.Second)
		bus := newLogind()
		s, end := w.watchShutdowns(bus, []shutdown.Group{
			{Priority: 0, Grace: time.Minute},
			{Priority: 1000, Grace: time.Minute},
		})
		defer end()
		s.unsent.Store(true)
		bus.signal(true)
		w.sleep(50 * time.Second)
		w.checkRunning("high/app#0")
		s.unsent.Store(false)
		w.sleep(time.Second)
		w.checkRunning()
		s.unsent.Store(true)
		w.sleep(50 * time.Second)
		if !bus.isLocked() {
			t.Error("got the machine going down before the last statuses are sent, want it to wait")
		}
		w.sleep(20 * time.Second)
		if bus.isLocked() {
			t.Error("got the shutdown delayed after its time, want it to go on")
		}
	})
}

// TestShutdownWaitsForItsGroup checks that a pod that does not end in the time of its group takes none of the time of
// later groups, and that one that had ended before takes none at all, although its volume cannot be unmounted.
func TestShutdownWaitsForItsGroup(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		done := apiPod("done", withRestart(corev1.RestartPolicyNever))
		w.run(done, apiPod("stuck"), apiPod("high", withPriority(1000)))
		w.sleep(time.Second)
		w.keepVolume(done)
		for _, c := range w.runtime.Containers() {
			switch c.Labels[podutil.LabelPodName] {
			case "done":
				w.runtime.ExitContainer(c.Id, 0, "")
			case "stuck":
				w.runtime.Inject(&fake.Fault{Verb: "StopContainer", Object: c.Id, Hang: true})
			}
		}
		w.sleep(time.Second)
		if all := w.agent.Active(t.Context()); len(all) != 2 {
			t.Errorf("got %d active pods, want those that run", len(all))
		}
		bus := newLogind()
		_, end := w.watchShutdowns(bus, []shutdown.Group{
			{Priority: 0, Grace: 10 * time.Second},
			{Priority: 1000, Grace: time.Hour},
			{Priority: 2000000000, Grace: time.Hour},
		})
		defer end()
		bus.signal(true)
		w.sleep(9 * time.Second)
		if got := w.running(); len(got) != 2 || !bus.isLocked() {
			t.Errorf("in the time of the first group: got %q running, locked %t, want two and true", got, bus.isLocked())
		}
		w.sleep(10 * time.Second)
		w.checkRunning("stuck/app#0")
		if bus.isLocked() {
			t.Error("got a shutdown that still waits for a pod whose group is over, want it to go on")
		}
		if st := w.status(done); st.Phase != corev1.PodSucceeded || st.Reason != "" {
			t.Errorf("got a completed pod %s %s, want it as it ended", st.Phase, st.Reason)
		}
	})
}

// TestShutdownCalledOff checks that pods are admitted again, and the lock is held for the next shutdown. Static pods
// start again, because no controller replaces them; other pods stay as they have ended.
func TestShutdownCalledOff(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(staticPod("etcd", "0123"), apiPod("web"))
		w.sleep(time.Second)
		bus := newLogind()
		s, end := w.watchShutdowns(bus, []shutdown.Group{{Grace: time.Minute}})
		defer end()
		bus.signal(true)
		w.sleep(10 * time.Second)
		w.checkRunning()
		bus.signal(false)
		w.sleep(2 * time.Second)
		w.checkRunning("etcd/app#1")
		if failed := w.eventsWith("FailedCreatePodSandBox"); len(failed) > 0 {
			t.Errorf("got %q, want no sandbox that fails", failed)
		}
		if r := s.Rejection(apiPod("web")); r != nil || !bus.isLocked() || s.reported() != nil {
			t.Errorf("got refusal %+v, locked %v, reason %v", r, bus.isLocked(), s.reported())
		}
		want := []string{
			"Shutdown: Shutdown manager detected shutdown event",
			"Shutdown: Shutdown manager detected shutdown cancellation",
		}
		if !slices.Equal(s.events, want) {
			t.Errorf("events: got %q, want %q", s.events, want)
		}
	})
}

// TestShutdownCalledOffOnce checks that a static pod whose first sandbox is long gone starts once when a shutdown is
// called off: its worker has to know which sandboxes there are.
func TestShutdownCalledOffOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(staticPod("etcd", "0123"))
		w.sleep(time.Second)
		w.runtime.KillSandbox(w.runtime.Sandboxes()[0].Id)
		w.sleep(time.Minute)
		w.exit("app", 1)
		w.sleep(time.Minute)
		w.checkRunning("etcd/app#2")
		bus := newLogind()
		_, end := w.watchShutdowns(bus, []shutdown.Group{{Grace: time.Minute}})
		defer end()
		bus.signal(true)
		w.sleep(10 * time.Second)
		bus.signal(false)
		w.sleep(2 * time.Second)
		w.checkRunning("etcd/app#3")
		w.sleep(5 * time.Minute)
		w.checkRunning("etcd/app#3")
	})
}

// TestShutdownCalledOffEarly checks that a static pod that still ends when a shutdown is called off starts again when
// it has ended.
func TestShutdownCalledOffEarly(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(staticPod("etcd", "0123"))
		w.sleep(time.Second)
		bus := newLogind()
		_, end := w.watchShutdowns(bus, []shutdown.Group{{Grace: time.Second}})
		defer end()
		hung := w.runtime.Inject(&fake.Fault{Verb: "StopContainer", Hang: true})
		bus.signal(true)
		w.sleep(5 * time.Second)
		bus.signal(false)
		w.sleep(5 * time.Second)
		w.checkRunning("etcd/app#0")
		w.runtime.Release(hung)
		w.sleep(time.Minute)
		w.checkRunning("etcd/app#1")
	})
}

// TestStaticPodInShutdown checks that a static pod that is new while the machine goes down is refused once, and starts
// when the shutdown is called off.
func TestStaticPodInShutdown(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		bus := newLogind()
		s, end := w.watchShutdowns(bus, []shutdown.Group{{Grace: time.Minute}})
		defer end()
		begun := 0
		w.doomed = func(pod *corev1.Pod) *agent.Eviction {
			if begun++; begun > 100 {
				return nil // ends a loop without bound
			}
			return s.Interrupted(pod)
		}
		bus.signal(true)
		w.refusal.Store(s.Rejection(apiPod("any")))
		w.run(staticPod("etcd", "0123"))
		w.sleep(time.Minute)
		w.checkRunning()
		if refused := w.eventsWith("NodeShutdown"); len(refused) != 1 {
			t.Errorf("got %d events that the pod is refused, want 1", len(refused))
		}
		w.refusal.Store(nil)
		bus.signal(false)
		w.sleep(2 * time.Second)
		w.checkRunning("etcd/app#0")
	})
}

// TestShutdownForgotten checks that a shutdown which logind has forgotten, because it has restarted, ends no further
// group.
func TestShutdownForgotten(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{TermTakes: 3 * time.Second})
		w.run(staticPod("low", "0123"), apiPod("high", withPriority(1000)))
		w.sleep(time.Second)
		bus := newLogind()
		s, end := w.watchShutdowns(bus, []shutdown.Group{{Grace: time.Minute}, {Priority: 1000, Grace: time.Minute}})
		defer end()
		bus.signal(true)
		w.sleep(time.Second)
		bus.signal(false)
		w.sleep(10 * time.Second)
		w.checkRunning("high/app#0", "low/app#1")
		if r := s.Rejection(apiPod("new")); r != nil || !bus.isLocked() || bus.releases > 0 || s.reported() != nil {
			t.Errorf("got refusal %+v, locked %v, %d releases, reason %v, want new pods admitted and the lock held",
				r, bus.isLocked(), bus.releases, s.reported())
		}
	})
}

// TestShutdownWithoutSignal checks that a shutdown that begins or is called off while there is no connection to logind
// is noticed with the next connection.
func TestShutdownWithoutSignal(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(apiPod("web"))
		w.sleep(time.Second)
		bus := newLogind()
		s, end := w.watchShutdowns(bus, []shutdown.Group{{Grace: time.Minute}})
		defer end()
		miss := func(down bool) {
			bus.mu.Lock()
			bus.down = down
			bus.mu.Unlock()
			bus.cut <- errors.New("the system bus has restarted")
			w.sleep(time.Minute)
		}
		miss(true)
		w.checkRunning()
		if s.Rejection(apiPod("new")) == nil || s.reported() == nil || bus.isLocked() {
			t.Errorf("after the missed begin: got reason %v, locked %v, want new pods refused, a reason, and no lock",
				s.reported(), bus.isLocked())
		}
		miss(false)
		if r := s.Rejection(apiPod("new")); r != nil || s.reported() != nil || !bus.isLocked() {
			t.Errorf("after the missed end: got refusal %+v, reason %v, locked %v", r, s.reported(), bus.isLocked())
		}
	})
}

// TestShutdownGoesOn checks that an agent that restarts in the middle of a shutdown goes on with the same group. It
// waits for its pods, and not for ever for a source that stays silent; it brings no ended pod back.
func TestShutdownGoesOn(t *testing.T) {
	groups := []shutdown.Group{{Priority: 0, Grace: time.Minute}, {Priority: 1000, Grace: time.Minute}}
	for name, after := range map[string]time.Duration{"synced soon": 5 * time.Second, "never synced": time.Hour} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.runtime.Script("app", fake.Script{TermTakes: 3 * time.Second})
				low, high := apiPod("low"), apiPod("high", withPriority(1000))
				w.run(low, high)
				w.sleep(time.Second)
				bus := newLogind()
				_, end := w.watchShutdowns(bus, groups)
				bus.signal(true)
				w.sleep(4 * time.Second)
				w.checkRunning("high/app#0")
				end()
				w.set.Synced = false
				w.restart()
				s, end := w.watchShutdowns(bus, groups)
				defer end()
				if s.Interrupted(low) == nil || s.Rejection(apiPod("new")) == nil ||
					s.Rejection(staticPod("static", "0123")) != nil {
					t.Error("want the first group interrupted, new pods refused and running static pods let in")
				}
				go func() {
					time.Sleep(after)
					w.change(func(set *pods.Set) { set.Synced = true })
				}()
				w.sleep(min(after, groups[1].Grace) + 5*time.Second)
				w.checkRunning()
				time.Sleep(after)
			})
		})
	}
}

// TestShutdownGoesOnAfterFirstList checks that an agent that restarts in the middle of a shutdown knows no pod before
// the runtime has listed them. It waits for that, and then still ends its pods group by group, from the group that
// was current.
func TestShutdownGoesOnAfterFirstList(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{TermTakes: 3 * time.Second})
		low, high := apiPod("low"), apiPod("high", withPriority(1000))
		critical := apiPod("critical", withPriority(2000000000))
		for _, pod := range []*corev1.Pod{low, high, critical} {
			w.run(pod)
			w.sleep(time.Second)
		}
		groups := []shutdown.Group{
			{Priority: 0, Grace: time.Minute},
			{Priority: 1000, Grace: time.Minute},
			{Priority: 2000000000, Grace: time.Minute},
		}
		bus := newLogind()
		_, end := w.watchShutdowns(bus, groups)
		bus.signal(true)
		end()
		hung := w.runtime.Inject(&fake.Fault{Verb: "ListPodSandbox", Hang: true})
		defer w.restartInShutdown(bus, groups)()
		w.sleep(20 * time.Second)
		if !bus.isLocked() {
			t.Error("got the inhibitor lock released before the runtime has listed its pods, want it held")
		}
		w.checkRunning("high/app#0", "critical/app#0")
		w.runtime.Release(hung)
		w.sleep(2 * time.Second)
		w.checkRunning("high/app#0", "critical/app#0") // both have their time to end, one after the other
		w.sleep(2 * time.Second)
		w.checkRunning("critical/app#0")
		w.sleep(2500 * time.Millisecond)
		w.checkRunning()
		if !bus.isLocked() {
			t.Error("got the inhibitor lock released before the last statuses are sent, want it held")
		}
		w.sleep(2 * time.Second)
		if bus.isLocked() {
			t.Error("got the inhibitor lock held after all pods have ended, want it released")
		}
	})
}

// TestShutdownWithoutRuntime checks that a runtime that lists nothing delays the shutdown by the time of the current
// group only.
func TestShutdownWithoutRuntime(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(apiPod("web"))
		w.sleep(time.Second)
		groups := []shutdown.Group{{Priority: 0, Grace: time.Minute}, {Priority: 1000, Grace: time.Minute}}
		bus := newLogind()
		bus.down = true
		w.runtime.Inject(&fake.Fault{Verb: "ListPodSandbox", Hang: true})
		defer w.restartInShutdown(bus, groups)()
		w.sleep(groups[0].Grace - time.Second)
		if !bus.isLocked() {
			t.Error("got the inhibitor lock released before the time of the first group is over, want it held")
		}
		w.sleep(5 * time.Second)
		if bus.isLocked() {
			t.Error("got the inhibitor lock held for a runtime that does not answer, want it released")
		}
	})
}

// TestShutdownGroupWithoutTime checks that an agent that restarts in a shutdown waits for its pods although the first
// group has no time, and then ends each group.
func TestShutdownGroupWithoutTime(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{TermTakes: 3 * time.Second})
		low, high := apiPod("low"), apiPod("high", withPriority(1000))
		w.run(low)
		w.sleep(time.Second)
		w.run(high)
		w.sleep(time.Second)
		groups := []shutdown.Group{{Priority: 0}, {Priority: 1000, Grace: time.Minute}}
		bus := newLogind()
		bus.down = true
		hung := w.runtime.Inject(&fake.Fault{Verb: "ListPodSandbox", Hang: true})
		defer w.restartInShutdown(bus, groups)()
		w.sleep(20 * time.Second)
		if !bus.isLocked() {
			t.Error("got the inhibitor lock released before the runtime has listed its pods, want it held")
		}
		w.runtime.Release(hung)
		w.sleep(10 * time.Second)
		w.checkRunning()
		for _, pod := range []*corev1.Pod{low, high} {
			if st := w.status(pod); st.Phase != corev1.PodFailed || st.Reason != shutdown.Reason {
				t.Errorf("%s: got %s %s, want Failed %s", pod.Name, st.Phase, st.Reason, shutdown.Reason)
			}
		}
		if bus.isLocked() {
			t.Error("got the inhibitor lock held after all pods have ended, want it released")
		}
	})
}

// TestShutdownWithSilentSource checks that the wait for a source that stays silent leaves time to end the pods that are
// known.
func TestShutdownWithSilentSource(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{TermTakes: 3 * time.Second})
		pod := apiPod("web")
		w.run(pod)
		w.sleep(time.Second)
		w.set.Synced = false
		w.restart()
		bus := newLogind()
		bus.down = true
		_, end := w.watchShutdowns(bus, []shutdown.Group{{Grace: time.Minute}})
		defer end()
		w.sleep(50 * time.Second)
		w.checkRunning()
		if st := w.status(pod); st.Phase != corev1.PodFailed || st.Reason != shutdown.Reason {
			t.Errorf("got %s %s, want Failed %s", st.Phase, st.Reason, shutdown.Reason)
		}
		if bus.isLocked() {
			t.Error("got the inhibitor lock held after all pods have ended, want it released")
		}
	})
}

// TestShutdownStateUnreadable checks that a restarted agent that cannot read how far the shutdown has come does not let
// the pods of the first group start again.
func TestShutdownStateUnreadable(t *testing.T) {
	for name, content := range map[string]string{"empty": "", "cut off": `{"startTime":"2026-`, "another format": "[]"} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				if err := os.WriteFile(w.path("graceful_node_shutdown_state"), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
				bus := newLogind()
				bus.down = true
				s := shutdown.New(shutdown.Config{
					Groups:   []shutdown.Group{{Priority: 0, Grace: time.Minute}, {Priority: 1000, Grace: time.Minute}},
					RootDir:  w.root,
					Pods:     w.agent.Supervisor,
					Connect:  func(context.Context) (shutdown.Bus, error) { return bus, nil },
					Reporter: &shutdowns{},
					Unsent:   func() bool { return false },
					Log:      slog.New(slog.NewTextHandler(t.Output(), nil)),
				})
				s.Resume(t.Context())
				if s.Interrupted(apiPod("low")) == nil || s.Interrupted(apiPod("high", withPriority(1000))) != nil {
					t.Error("want the pods of the first group interrupted, and no others")
				}
			})
		})
	}
}

// TestShutdownThatWasCutOff checks that the record of an earlier shutdown that was cut off, as by a power failure, does
// not count for the next one.
func TestShutdownThatWasCutOff(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		state := []byte(`{"startTime":"1999-01-01T00:00:00Z","wave":1}`)
		if err := os.WriteFile(w.path("graceful_node_shutdown_state"), state, 0o600); err != nil {
			t.Fatal(err)
		}
		groups := []shutdown.Group{{Priority: 0, Grace: time.Minute}, {Priority: 1000, Grace: time.Minute}}
		bus := newLogind()
		s, end := w.watchShutdowns(bus, groups)
		end()
		if began, ended := s.Times(); began.Year() != 1999 || !ended.IsZero() {
			t.Errorf("got times %v and %v, want those of the shutdown that was cut off", began, ended)
		}
		bus.down = true
		s.Resume(t.Context())
		if s.Interrupted(apiPod("high", withPriority(1000))) != nil || s.Interrupted(apiPod("low")) != nil {
			t.Error("got pods of a group that has not begun interrupted, want none")
		}
		s, end = w.watchShutdowns(bus, groups)
		defer end()
		w.sleep(time.Minute)
		if began, ended := s.Times(); began.Year() == 1999 || ended.IsZero() {
			t.Errorf("got times %v and %v, want those of the shutdown that has ended", began, ended)
		}
	})
}

// TestShutdownWithFewerGroups checks that an agent that restarts in the middle of a shutdown with fewer groups than
// before still waits for the pods.
func TestShutdownWithFewerGroups(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{TermTakes: 10 * time.Second})
		w.run(apiPod("web"))
		w.sleep(time.Second)
		state := []byte(`{"startTime":"2000-01-01T00:00:00Z","wave":3}`)
		if err := os.WriteFile(w.path("graceful_node_shutdown_state"), state, 0o600); err != nil {
			t.Fatal(err)
		}
		bus := newLogind()
		bus.down = true
		_, end := w.watchShutdowns(bus, []shutdown.Group{{Priority: 0, Grace: time.Minute}})
		defer end()
		w.sleep(5 * time.Second)
		if !bus.isLocked() {
			t.Error("got the machine going down beside pods that are ending, want it to wait")
		}
		w.sleep(10 * time.Second)
		w.checkRunning()
		if bus.isLocked() {
			t.Error("got the shutdown delayed without pods, want it to go on")
		}
	})
}

// TestSilentLogind checks that a logind that does not answer does not keep the agent from its work.
func TestSilentLogind(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		bus := newLogind()
		bus.silent = true
		began := time.Now()
		s, end := w.watchShutdowns(bus, []shutdown.Group{{Grace: time.Minute}})
		defer end()
		if took := time.Since(began); took > 10*time.Second || s.Rejection(apiPod("web")) != nil {
			t.Errorf("the start took %s, want at most 10s, and no refused pod", took)
		}
	})
}

// TestNoBus checks that where there is no system bus, it is tried again until there is one.
func TestNoBus(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		bus, tries := newLogind(), 0
		s := shutdown.New(shutdown.Config{
			Groups:  []shutdown.Group{{Grace: time.Minute}},
			RootDir: w.root,
			Pods:    w.agent.Supervisor,
			Connect: func(context.Context) (shutdown.Bus, error) {
				if tries++; tries < 5 {
					return nil, errors.New("no such file")
				}
				return bus, nil
			},
			Reporter: &shutdowns{},
			Unsent:   func() bool { return false },
			Log:      slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		w.sleep(time.Minute)
		if !bus.isLocked() {
			t.Errorf("after %d tries the lock is not taken, want it taken", tries)
		}
		cancel()
		<-done
	})
}
