package probes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// bench runs a prober whose exec probes are answered by the test, and logs what it does with the time since the start.
type bench struct {
	p     *Prober
	start time.Time

	mu     sync.Mutex
	answer func(container string) (code int32, err error)
	log    []string
	events []string // the events that attempts call for
}

func newBench(t *testing.T, parallel int) *bench {
	b := &bench{start: time.Now(), answer: func(string) (int32, error) { return 0, nil }}
	b.p = New(Config{
		Parallel: parallel,
		Exec: func(ctx context.Context, id string, _ []string, _ time.Duration) ([]byte, int32, error) {
			b.note("try " + id)
			b.mu.Lock()
			answer := b.answer
			b.mu.Unlock()
			code, err := answer(id)
			return []byte("output"), code, err
		},
		Attempt: func(_ types.UID, a Attempt) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.events = append(b.events, a.Message)
			if (a.Reason == "") != (a.Message == "") {
				b.events = append(b.events, "reason "+a.Reason)
			}
		},
		Changed: func(_ types.UID, v Status) { b.note(fmt.Sprintf("%s of %s: %s", v.Kind, v.ContainerID, v.Result)) },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); b.p.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return b
}

func (b *bench) note(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.log = append(b.log, fmt.Sprintf("%v %s", time.Since(b.start), what))
}

// after lets time pass and returns what happened in it.
func (b *bench) after(d time.Duration) []string {
	time.Sleep(d)
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	log := b.log
	b.log = nil
	return log
}

func execTarget(id string, kind Kind, probe corev1.Probe) Target {
	probe.ProbeHandler = corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"check"}}}
	return Target{
		ContainerID: id,
		Container:   &corev1.Container{Name: "app"},
		Kind:        kind,
		Probe:       &probe,
		StartedAt:   time.Now(),
	}
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestRhythmFollowsTheContainersStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		target := execTarget("c1", Readiness, corev1.Probe{InitialDelaySeconds: 3, PeriodSeconds: 10})
		time.Sleep(time.Second) // the agent took a second to notice
		b.p.Set("pod", []Target{target})
		expect(t, b.after(25*time.Second), "3s try c1", "3s Readiness of c1: success", "13s try c1", "23s try c1")
	})
}

func TestFirstProbeOfANewContainerHasNoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		b.p.Set("pod", []Target{execTarget("c1", Readiness, corev1.Probe{PeriodSeconds: 3600})})
		expect(t, b.after(time.Second), "0s try c1", "0s Readiness of c1: success")
	})
}

func TestStartupGatesTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		b.answer = func(string) (int32, error) {
			if time.Since(b.start) < 4*time.Second {
				return 1, nil
			}
			return 0, nil
		}
		b.p.Set("pod", []Target{
			execTarget("c1", Readiness, corev1.Probe{PeriodSeconds: 10}),
			execTarget("c1", Startup, corev1.Probe{PeriodSeconds: 2, FailureThreshold: 30}),
			execTarget("c1", Liveness, corev1.Probe{PeriodSeconds: 3, InitialDelaySeconds: 8}),
		})
		expect(t, b.after(10*time.Second),
			"0s try c1", "2s try c1", "4s try c1", "4s Startup of c1: success",
			"4s try c1", "4s Readiness of c1: success", // at once
			"8s try c1") // liveness, when its delay is over; startup is not probed any more
	})
}

func TestStartupFailureEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		b.answer = func(string) (int32, error) { return 1, nil }
		b.p.Set("pod", []Target{
			execTarget("c1", Startup, corev1.Probe{PeriodSeconds: 5, FailureThreshold: 2}),
			execTarget("c1", Liveness, corev1.Probe{PeriodSeconds: 1}),
		})
		expect(t, b.after(time.Minute), "0s try c1", "5s try c1", "10s try c1", "10s Startup of c1: failure")
		next := execTarget("c2", Startup, corev1.Probe{PeriodSeconds: 5, FailureThreshold: 2}) // the container was replaced
		b.p.Set("pod", []Target{next})
		expect(t, b.after(time.Second), "1m0s try c2")
	})
}

func TestLivenessFailureEndsItsProbing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		b.answer = func(string) (int32, error) { return 1, nil }
		b.p.Set("pod", []Target{execTarget("c1", Liveness, corev1.Probe{PeriodSeconds: 10, FailureThreshold: 3})})
		expect(t, b.after(5*time.Minute), "10s try c1", "20s try c1", "30s try c1", "30s Liveness of c1: failure")
	})
}

func TestAgentRestartKeepsReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		target := execTarget("c1", Readiness, corev1.Probe{PeriodSeconds: 10, FailureThreshold: 2})
		target.StartedAt, target.Known = time.Now().Add(-44*time.Second), Success
		started := execTarget("c1", Startup, corev1.Probe{PeriodSeconds: 1})
		started.StartedAt, started.Known = target.StartedAt, Success
		b.p.Set("pod", []Target{started, target})
		for _, v := range b.p.Statuses("pod") {
			if v.Result != Success {
				t.Errorf("%s: got %s after the restart, want %s", v.Kind, v.Result, Success)
			}
		}
		b.mu.Lock()
		b.answer = func(string) (int32, error) { return 1, nil }
		b.mu.Unlock()
		expect(t, b.after(20*time.Second), "6s try c1", "16s try c1", "16s Readiness of c1: failure")
	})
}

// TestStartIsKnownLater checks that a startup probe ends when it becomes known that an earlier process has seen the
// container start.
func TestStartIsKnownLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		b.answer = func(string) (int32, error) { return 1, nil }
		started := execTarget("c1", Startup, corev1.Probe{PeriodSeconds: 2, FailureThreshold: 3})
		ready := execTarget("c1", Readiness, corev1.Probe{PeriodSeconds: 10, FailureThreshold: 2})
		b.p.Set("pod", []Target{started, ready})
		expect(t, b.after(3*time.Second), "0s try c1", "2s try c1")
		started.Known, ready.Known = Success, Success
		b.p.Set("pod", []Target{started, ready})
		expect(t, b.after(15*time.Second), "3s try c1", "13s try c1", "13s Readiness of c1: failure")
	})
}

func TestSetAgainGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		b.answer = func(string) (int32, error) { return 1, nil }
		target := execTarget("c1", Liveness, corev1.Probe{PeriodSeconds: 10, FailureThreshold: 3})
		for range 35 { // each second, as a busy worker would
			b.p.Set("pod", []Target{target})
			time.Sleep(time.Second)
		}
		expect(t, b.after(0), "10s try c1", "20s try c1", "30s try c1", "30s Liveness of c1: failure")
	})
}

// TestTimeToStart checks that a container has failureThreshold periods to start: a liveness probe first looks at it
// when it is one period old, and a startup probe that looks earlier neither counts nor reports that it has failed.
func TestTimeToStart(t *testing.T) {
	for _, c := range []struct {
		kind    Kind
		delay   int32
		startup time.Duration // of the application
		want    string
	}{
		{Liveness, 0, 9, "10"},
		{Liveness, 4, 9, "10"},
		{Liveness, 12, 9, "12"},
		{Liveness, 0, 11, "10 failure"},
		{Startup, 0, 0, "0 success"},
		{Startup, 0, 9, "0 10 success"},
		{Startup, 4, 9, "4 14 success"},
		{Startup, 12, 11, "12 success"},
		{Startup, 0, 11, "0 10 failure"},
		{Startup, 12, 13, "12 failure"},
	} {
		t.Run(fmt.Sprintf("%s after %d of %d", c.kind, c.delay, c.startup), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 0)
				b.answer = func(string) (int32, error) {
					if time.Since(b.start) < c.startup*time.Second {
						return 1, nil
					}
					return 0, nil
				}
				probe := corev1.Probe{PeriodSeconds: 10, FailureThreshold: 1, InitialDelaySeconds: c.delay}
				b.p.Set("pod", []Target{execTarget("c1", c.kind, probe)})
				var got []string
				for _, line := range b.after(18 * time.Second) {
					at, what, _ := strings.Cut(line, "s ")
					if what != "try c1" {
						_, at, _ = strings.Cut(what, ": ")
					}
					got = append(got, at)
				}
				if all := strings.Join(got, " "); all != c.want || len(b.events) != 1 {
					t.Errorf("got %q and %d reported, want %q and 1", all, len(b.events), c.want)
				}
			})
		})
	}
}

// TestRestartCountsFailures checks that a restart of the agent changes nothing for a container that is older
// than a period: a failure counts at once.
func TestRestartCountsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		b.answer = func(string) (int32, error) { return 1, nil }
		var all []Target
		for _, kind := range []Kind{Startup, Liveness} {
			target := execTarget(string(kind), kind, corev1.Probe{PeriodSeconds: 10, FailureThreshold: 1})
			target.StartedAt = time.Now().Add(-10 * time.Second)
			all = append(all, target)
		}
		b.p.Set("pod", all)
		b.after(time.Second)
		for _, v := range b.p.Statuses("pod") {
			if v.Result != Failure {
				t.Errorf("%s: got %s, want %s", v.Kind, v.Result, Failure)
			}
		}
	})
}

func TestRemovedTargetIsCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		p := New(Config{
			Exec: func(ctx context.Context, _ string, _ []string, _ time.Duration) ([]byte, int32, error) {
				<-ctx.Done()
				ended <- ctx.Err()
				return nil, 1, nil
			},
			Attempt: func(types.UID, Attempt) { t.Error("got an attempt that was cut short") },
			Changed: func(types.UID, Status) { t.Error("got a status for a removed target") },
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); p.Run(ctx) }()
		p.Set("pod", []Target{execTarget("c1", Readiness, corev1.Probe{FailureThreshold: 1})})
		synctest.Wait()
		p.Set("pod", nil)
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("attempt: got %v, want context.Canceled", err)
		}
		synctest.Wait()
		if len(p.Statuses("pod")) > 0 || len(p.pods) > 0 || len(p.due) > 0 {
			t.Error("after the end of the pod: got something of it left, want nothing")
		}
		cancel()
		<-done
	})
}

// TestHangingProbesHurtOnlyThemselves checks that containers that hang must not keep others from being probed in
// time, however many hang.
func TestHangingProbesHurtOnlyThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 4)
		release := make(chan struct{})
		b.answer = func(id string) (int32, error) {
			if strings.HasPrefix(id, "hang") {
				<-release
			}
			return 0, nil
		}
		var hanging []Target
		for i := range 40 {
			hanging = append(hanging, execTarget(fmt.Sprint("hang", i), Liveness, corev1.Probe{PeriodSeconds: 1}))
		}
		b.p.Set("bad", hanging)
		b.after(3 * time.Second) // 40 attempts, 4 in each 200 ms
		good := execTarget("good", Readiness, corev1.Probe{PeriodSeconds: 1})
		b.p.Set("good", []Target{good})
		expect(t, b.after(2500*time.Millisecond), "3s try good", "3s Readiness of good: success", "4s try good",
			"5s try good")
		close(release)
	})
}

// TestHangingRequestsDoNotDelayCommands checks that a command does not wait for a place that a request has. While the
// request hangs, the clock of the test stands still.
func TestHangingRequestsDoNotDelayCommands(t *testing.T) {
	arrived, tried := make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(arrived)
		select {
		case <-tried:
		case <-time.After(time.Minute):
			t.Error("while a request hangs: the command did not run, want it to")
		}
	}))
	defer s.Close()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.answer = func(string) (int32, error) { close(tried); return 0, nil }
		hanging := execTarget("bad", Readiness, corev1.Probe{PeriodSeconds: 3600, TimeoutSeconds: 600})
		hanging.Probe.ProbeHandler, hanging.PodIP = httpGet(t, s, "/"), "127.0.0.1"
		b.p.Set("bad", []Target{hanging})
		<-arrived
		b.p.Set("good", []Target{execTarget("good", Readiness, corev1.Probe{PeriodSeconds: 3600})})
		b.after(time.Second)
	})
}

// TestHangingRequestsGiveWay checks that 1500 requests that hang delay the next one by less than half a second. A busy
// machine may have so many probes that are due within some seconds.
func TestHangingRequestsGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, release := New(Config{}), make(chan struct{})
		for range 1500 {
			go p.requests.Do(t.Context(), func() error { <-release; return nil })
		}
		synctest.Wait()
		start := time.Now()
		_ = p.requests.Do(t.Context(), func() error { return nil })
		if late := time.Since(start); late >= 500*time.Millisecond {
			t.Errorf("got a delay of %v, want less than 500ms", late)
		}
		close(release)
	})
}

// TestOneAttemptAtATime checks that a probe is not tried again while its last attempt goes on, however long that takes
// and however often its target is set.
func TestOneAttemptAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		release := make(chan struct{})
		b.answer = func(string) (int32, error) {
			<-release
			return 0, nil
		}
		target := execTarget("c1", Readiness, corev1.Probe{PeriodSeconds: 1})
		for range 10 {
			b.p.Set("pod", []Target{target})
			time.Sleep(time.Second)
		}
		expect(t, b.after(0), "0s try c1")
		close(release)
		expect(t, b.after(time.Second), "10s Readiness of c1: success", "11s try c1")
	})
}

func TestParallelAttemptsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 4)
		var mu sync.Mutex
		now, most := 0, 0
		b.answer = func(string) (int32, error) {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(100 * time.Millisecond)
			mu.Lock()
			now--
			mu.Unlock()
			return 0, nil
		}
		var all []Target
		for i := range 40 {
			all = append(all, execTarget(fmt.Sprint("c", i), Readiness, corev1.Probe{PeriodSeconds: 60}))
		}
		b.p.Set("pod", all)
		got := b.after(999 * time.Millisecond)
		if most != 4 || len(got) != 40+36 { // the last four are still under way
			t.Errorf("got %d at once, %d events, want 4 and 76", most, len(got))
		}
		time.Sleep(time.Second)
	})
}

func TestErroredAttemptsDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		b.answer = func(string) (int32, error) { return 0, errors.New("no such container") }
		b.p.Set("pod", []Target{execTarget("c1", Liveness, corev1.Probe{PeriodSeconds: 10, FailureThreshold: 1})})
		expect(t, b.after(21*time.Second), "10s try c1", "10s try c1", "10s try c1", "20s try c1", "20s try c1", "20s try c1")
		want := "Liveness probe errored and resulted in unknown state: no such container"
		expect(t, b.events, want, want)
	})
}

func TestExecOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		answers := []struct {
			code int32
			err  error
		}{{0, nil}, {3, nil}, {0, fmt.Errorf("exec: %w", context.DeadlineExceeded)},
			{0, fmt.Errorf("ExecSync c1: %w", status.Error(codes.Unknown, "no such command"))}}
		n := 0
		b.answer = func(string) (int32, error) {
			n = min(n+1, len(answers))
			return answers[n-1].code, answers[n-1].err
		}
		b.p.Set("pod", []Target{execTarget("c1", Readiness, corev1.Probe{PeriodSeconds: 10, TimeoutSeconds: 2})})
		b.after(35 * time.Second)
		expect(t, b.events, "", "Readiness probe failed: output",
			`Readiness probe failed: command timed out: "check" timed out after 2s`,
			"Readiness probe errored and resulted in unknown state: rpc error: code = Unknown desc = no such command")
	})
}

// TestLargeCommandsTakeTurns checks that of the commands of a pod which its references make large one is in memory, as
// long as it runs. Other commands and other pods do not wait for it.
func TestLargeCommandsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		b.answer = func(id string) (int32, error) {
			if strings.HasPrefix(id, "slow") {
				time.Sleep(time.Hour)
			}
			return 0, nil
		}
		target := func(id, pod string, size int) Target {
			large := execTarget(id, Readiness, corev1.Probe{PeriodSeconds: 100_000})
			large.Namespace, large.Pod = "default", pod
			large.Command = func() []string { return []string{strings.Repeat("x", size)} }
			return large
		}
		b.p.Set("a", []Target{target("slow1", "a", 1<<20), target("slow2", "a", 1<<20), target("small", "a", 1<<10)})
		b.p.Set("b", []Target{target("fast", "b", 1<<20)})
		tries := func(d time.Duration) (ids []string) {
			for _, line := range b.after(d) {
				if _, id, ok := strings.Cut(line, " try "); ok {
					ids = append(ids, strings.TrimRight(id, "12"))
				}
			}
			slices.Sort(ids)
			return ids
		}
		expect(t, tries(time.Minute), "fast", "slow", "small")
		expect(t, tries(time.Hour), "slow")
	})
}

// BenchmarkAtRest runs 10,000 exec probes with a period of 10 s, answered at once, and reports the CPU time that goes
// into a second of it.
func BenchmarkAtRest(b *testing.B) {
	const pods, each, period = 1000, 10, 10
	var attempts atomic.Int64
	p := New(Config{
		Exec:    func(context.Context, string, []string, time.Duration) ([]byte, int32, error) { return nil, 0, nil },
		Attempt: func(types.UID, Attempt) { attempts.Add(1) },
		Changed: func(types.UID, Status) {},
	})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range pods {
		var targets []Target
		for j := range each {
			t := execTarget(fmt.Sprint("c", i, "-", j), Readiness, corev1.Probe{PeriodSeconds: period})
			// A rhythm of its own for each, as containers that started at different times have.
			t.StartedAt, t.Known = t.StartedAt.Add(-time.Minute-time.Duration(i*each+j)*time.Millisecond), Success
			targets = append(targets, t)
		}
		p.Set(types.UID(fmt.Sprint("pod", i)), targets)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan struct{})
	go func() { defer close(done); p.Run(ctx) }()
	start, used := time.Now(), cpuTime(b)
	for b.Loop() {
		time.Sleep(time.Second)
	}
	b.ReportMetric(float64((cpuTime(b)-used).Microseconds())/time.Since(start).Seconds(), "cpu-µs/s")
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(pods*each), "B/target")
	b.ReportMetric(float64(attempts.Load())/time.Since(start).Seconds(), "attempts/s")
	cancel()
	<-done
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
