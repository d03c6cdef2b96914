package monitor

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// discard is the logger of tests that read no log.
var discard = slog.New(slog.DiscardHandler)

// TestRuntimeComesBack checks that a runtime that was away keeps its name, which is part of container IDs, and gets
// the pod CIDR again because it may be another process.
func TestRuntimeComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var updates atomic.Int32
		m, rt := run(t, hooks{done: func(verb string, _ time.Duration, err error) {
			if verb == "UpdateRuntimeConfig" && err == nil {
				updates.Add(1)
			}
		}})
		check := func(when, name string, want int32) {
			t.Helper()
			synctest.Wait()
			if got := m.RuntimeName(); got != name {
				t.Errorf("%s: runtime name: got %q, want %q", when, got, name)
			}
			if got := updates.Load(); got != want {
				t.Errorf("%s: UpdateRuntimeConfig calls: got %d, want %d", when, got, want)
			}
		}
		m.SetPodCIDR("10.1.0.0/24")
		time.Sleep(time.Minute)
		check("before the runtime runs", "", 0)
		select {
		case <-m.Answered():
			t.Error("before the runtime runs: got Answered closed, want it open")
		default:
		}
		if err := m.Waiting(); err == nil || !strings.Contains(err.Error(), m.cfg.Endpoint) {
			t.Errorf("before the runtime runs: waiting: got %v, want its address", err)
		}
		rt.Start()
		<-m.Answered()
		if err := m.Waiting(); err != nil {
			t.Errorf("after an answer: waiting: got %v, want nil", err)
		}
		<-m.Usable()
		check("when the runtime runs", "containerd", 1)
		m.SetPodCIDR("10.1.0.0/24")
		check("same CIDR", "containerd", 1)
		m.SetPodCIDR("10.2.0.0/24")
		check("another CIDR", "containerd", 2)
		rt.Crash(false)
		time.Sleep(time.Minute)
		check("while the runtime is away", "containerd", 2)
		if err := rt.Restart(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		check("when the runtime is back", "containerd", 3)
		rt.Crash(false)
		if err := rt.Restart(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * statusInterval)
		check("after a restart between two status calls", "containerd", 4)
	})
}

// TestPodCIDRIsRetried checks that the runtime gets the pod CIDR after an error that does not last, without a new
// connection: containerd may not be able to write its network configuration for a moment. The log says it once.
func TestPodCIDRIsRetried(t *testing.T) {
	for _, code := range []codes.Code{codes.Unknown, codes.DeadlineExceeded} {
		synctest.Test(t, func(t *testing.T) {
			var log strings.Builder
			var updates atomic.Int32
			m, rt := run(t, hooks{log: &log, done: func(verb string, _ time.Duration, err error) {
				if verb == "UpdateRuntimeConfig" && err == nil {
					updates.Add(1)
				}
			}})
			full := rt.Inject(&fake.Fault{Verb: "UpdateRuntimeConfig", Err: status.Error(code, "disk full")})
			m.SetPodCIDR("10.1.0.0/24")
			rt.Start()
			time.Sleep(3 * statusInterval)
			rt.Release(full)
			time.Sleep(3 * statusInterval)
			synctest.Wait()
			if got := updates.Load(); got != 1 {
				t.Errorf("%s: calls that succeeded: got %d, want 1", code, got)
			}
			if got := strings.Count(log.String(), "disk full"); got != 1 {
				t.Errorf("%s: got %d lines, want one:\n%s", code, got, &log)
			}
		})
	}
}

// TestFailedListOfImages checks that a list of the images that failed is repeated soon: it may be the one that was
// requested because an image has been pulled.
func TestFailedListOfImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lists atomic.Int32
		m, rt := run(t, hooks{done: func(verb string, _ time.Duration, err error) {
			if verb == "ListImages" && err == nil {
				lists.Add(1)
			}
		}})
		rt.Start()
		<-m.Usable()
		time.Sleep(statusInterval)
		before := lists.Load()
		busy := rt.Inject(&fake.Fault{Verb: "ListImages", Err: status.Error(codes.Unknown, "busy")})
		m.ImagesChanged()
		time.Sleep(time.Second)
		rt.Release(busy)
		time.Sleep(imagesRetry)
		synctest.Wait()
		if got := lists.Load() - before; got != 1 {
			t.Errorf("lists that succeeded after the failed one: got %d, want 1", got)
		}
	})
}

// TestAwayRuntimeIsRepeated checks that the log repeats each minute that the runtime does not answer.
func TestAwayRuntimeIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		rt := fake.New()
		client, err := cri.Dial("unix:///run/fake.sock", cri.Options{Log: discard, Connect: rt.Connect})
		if err != nil {
			t.Fatal(err)
		}
		m := New(Config{
			Client: client,
			Report: func(*runtimeapi.VersionResponse, *runtimeapi.StatusResponse) bool { return false },
			Ready:  func() { t.Error("the runtime is reported as ready") },
			Images: func([]*runtimeapi.Image, time.Time) {},
			Log:    slog.New(slog.NewTextHandler(&log, nil)),
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { m.Run(ctx); close(ended) }()
		time.Sleep(4*time.Minute + 30*time.Second)
		cancel()
		<-ended
		client.Close()
		rt.Close()
		if got := strings.Count(log.String(), "does not answer"); got < 4 || got > 5 {
			t.Errorf("got %d lines in 4.5 minutes, want one each minute:\n%s", got, &log)
		}
	})
}

// TestCgroupDriverIsAwaited checks that the log says once that pods wait for the runtime's cgroup driver.
func TestCgroupDriverIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		rt := fake.New()
		client, err := cri.Dial("unix:///run/fake.sock", cri.Options{Log: discard, Connect: rt.Connect})
		if err != nil {
			t.Fatal(err)
		}
		defer rt.Close()
		defer client.Close()
		m := New(Config{Client: client, Log: slog.New(slog.NewTextHandler(&log, nil))})
		answered := make(chan string)
		go func() {
			driver, _ := m.CgroupDriver(t.Context(), "systemd")
			answered <- driver
		}()
		time.Sleep(time.Minute)
		rt.Start()
		if got := <-answered; got != "systemd" {
			t.Errorf("driver: got %q, want systemd", got)
		}
		if got := strings.Count(log.String(), "cannot ask the container runtime for its cgroup driver"); got != 1 {
			t.Errorf("got %d lines, want one:\n%s", got, &log)
		}
	})
}

// TestCgroupDriverWithoutService checks that the agent waits for the cgroup driver of a containerd that cannot load its
// CRI plugin.
func TestCgroupDriverWithoutService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, rt := run(t, hooks{})
		broken := rt.Inject(&fake.Fault{
			Err: status.Error(codes.Unimplemented, "unknown service runtime.v1.RuntimeService"),
		})
		rt.Start()
		time.AfterFunc(time.Minute, func() { rt.Release(broken) })
		if got, err := m.CgroupDriver(t.Context(), "cgroupfs"); got != "systemd" || err != nil {
			t.Errorf("got %s, %v, want systemd", got, err)
		}
	})
}

// TestSlowCallsDoNotDelayStatus checks that a runtime that lists its images or takes its configuration slowly is
// still asked for its status on time. Otherwise the node would turn NotReady after 30 s without a good answer.
func TestSlowCallsDoNotDelayStatus(t *testing.T) {
	for _, slow := range []string{"ListImages", "UpdateRuntimeConfig"} {
		t.Run(slow, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, rt := run(t, hooks{})
				rt.Inject(&fake.Fault{Verb: slow, Delay: 100 * time.Second})
				rt.Start()
				m.SetPodCIDR("10.1.0.0/24")
				start := time.Now()
				<-m.Answered()
				if got, want := time.Since(start), 5*time.Second; got > want {
					t.Errorf("first status: got it after %s, want it within %s", got, want)
				}
				for range 6 {
					m.ImagesChanged()
					time.Sleep(time.Minute)
				}
				last := start
				for _, c := range rt.Calls() {
					if c.Verb != "Status" {
						continue
					}
					if got, want := c.At.Sub(last), 15*time.Second; got > want {
						t.Errorf("time between status calls: got %s, want at most %s", got, want)
					}
					last = c.At
				}
				if got, want := time.Since(last), 15*time.Second; got > want {
					t.Errorf("time since the last status call: got %s, want at most %s", got, want)
				}
			})
		})
	}
}

// TestCheckSoon checks that status calls follow each other quickly after CheckSoon and then return to their interval.
func TestCheckSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, rt := run(t, hooks{})
		rt.Start()
		<-m.Usable()
		time.Sleep(31 * time.Second)
		before := rt.Verbs()["Status"]
		m.CheckSoon()
		time.Sleep(5 * time.Second)
		if got, want := rt.Verbs()["Status"]-before, 1+quickChecks; got != want {
			t.Errorf("status calls within 5 s: got %d, want %d", got, want)
		}
	})
}

// TestReady checks that Ready is called once each time that the runtime and its network become ready.
func TestReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		_, rt := run(t, hooks{ready: func() { calls.Add(1) }})
		check := func(when string, want int32) {
			t.Helper()
			time.Sleep(time.Minute)
			if got := calls.Load(); got != want {
				t.Errorf("%s: calls of Ready: got %d, want %d", when, got, want)
			}
		}
		rt.SetCondition(runtimeapi.NetworkReady, false, "NetworkPluginNotReady", "cni plugin not initialized")
		rt.Start()
		check("without a network", 0)
		rt.SetCondition(runtimeapi.NetworkReady, true, "", "")
		check("with a network", 1)
		rt.Crash(false)
		check("while the runtime is away", 1)
		if err := rt.Restart(); err != nil {
			t.Fatal(err)
		}
		check("when the runtime is back", 2)
	})
}

// TestRuntimeThatSettles checks what is reported when a runtime comes back and is not ready: nothing in its first
// seconds, so that the node stays Ready while CRI-O reads its network configuration; after them the truth.
func TestRuntimeThatSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls, unready atomic.Int32
		_, rt := run(t, hooks{ready: func() { calls.Add(1) }, reported: func(ready bool) {
			if !ready {
				unready.Add(1)
			}
		}})
		check := func(when string, wantReady, wantUnready int32) {
			t.Helper()
			if got := calls.Load(); got != wantReady {
				t.Errorf("%s: calls of Ready: got %d, want %d", when, got, wantReady)
			}
			if got := unready.Swap(0); got != wantUnready {
				t.Errorf("%s: answers reported as not ready: got %d, want %d", when, got, wantUnready)
			}
		}
		answers := func(n int) { // n more answers of the runtime
			for until := rt.Verbs()["Status"] + n; rt.Verbs()["Status"] < until; {
				time.Sleep(10 * time.Millisecond)
			}
			synctest.Wait()
		}
		network := func(ready bool) {
			rt.SetCondition(runtimeapi.NetworkReady, ready, "NetworkPluginNotReady", "plugin status uninitialized")
		}
		restart := func() {
			rt.Crash(false)
			time.Sleep(5 * time.Second)
			network(false)
			rt.Start()
		}
		rt.Start()
		answers(2)
		check("at the start", 1, 0)
		restart()
		answers(3)
		check("back without a network", 1, 0)
		network(true)
		answers(1)
		check("with a network", 2, 0)
		time.Sleep(settleTime)
		network(false)
		answers(2)
		check("not ready without having been away", 2, 2)
		network(true)
		answers(2)
		check("with a network again", 3, 0)
		restart()
		answers(3)
		check("back without a network for good", 3, 0)
		time.Sleep(settleTime)
		synctest.Wait()
		unready.Store(0)
		answers(2)
		check("still without a network", 3, 2)
	})
}

// TestOtherConditions checks that a runtime which is back is reported at once, whatever its other conditions say:
// containerd's ContainerdHasNoDeprecationWarnings is false on many nodes.
func TestOtherConditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports atomic.Int32
		_, rt := run(t, hooks{reported: func(bool) { reports.Add(1) }})
		rt.SetCondition("ContainerdHasNoDeprecationWarnings", false, "ContainerdHasDeprecationWarnings", "")
		rt.Start()
		time.Sleep(time.Minute)
		rt.Crash(false)
		time.Sleep(2 * statusInterval)
		synctest.Wait()
		reports.Store(0)
		rt.Start()
		for before := rt.Verbs()["Status"]; rt.Verbs()["Status"] == before; {
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		if got := reports.Load(); got != 1 {
			t.Errorf("reports of the first answer: got %d, want 1", got)
		}
	})
}

// hooks are called by the monitor that run starts, and log receives its log. Each may be nil.
type hooks struct {
	done     func(verb string, took time.Duration, err error)
	ready    func()
	reported func(ready bool)
	log      io.Writer
}

// run starts a monitor of a runtime that does not run yet.
func run(t *testing.T, h hooks) (*Monitor, *fake.Runtime) {
	rt := fake.New()
	client, err := cri.Dial("unix:///run/fake.sock", cri.Options{Log: discard, Connect: rt.Connect, Done: h.done})
	if err != nil {
		t.Fatal(err)
	}
	if h.log == nil {
		h.log = t.Output()
	}
	m := New(Config{
		Client: client,
		Report: func(_ *runtimeapi.VersionResponse, s *runtimeapi.StatusResponse) bool {
			bad := func(c *runtimeapi.RuntimeCondition) bool {
				return !c.Status && (c.Type == runtimeapi.RuntimeReady || c.Type == runtimeapi.NetworkReady)
			}
			ready := !slices.ContainsFunc(s.Status.Conditions, bad)
			if h.reported != nil {
				h.reported(ready)
			}
			return ready
		},
		Ready: func() {
			if h.ready != nil {
				h.ready()
			}
		},
		Images: func([]*runtimeapi.Image, time.Time) {},
		Log:    slog.New(slog.NewTextHandler(h.log, nil)),
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { m.Run(ctx); close(ended) }()
	t.Cleanup(func() {
		cancel()
		<-ended
		client.Close()
		rt.Close()
	})
	return m, rt
}
