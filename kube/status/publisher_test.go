package status

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/kube/client"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// discard is the logger of tests that read no log.
var discard = slog.New(slog.DiscardHandler)

// bench is a publisher that runs against a fake API server inside a synctest bubble.
type bench struct {
	api *fakeAPI
	p   *Publisher
}

func newBench(t *testing.T, parallel int) *bench {
	b := &bench{api: newFakeAPI()}
	b.p = New(Config{Log: discard, Client: b.api.client(t), Parallel: parallel,
		Published: func(*corev1.Pod, time.Duration) {}})
	return b
}

// settled reports whether nothing is in flight and the server has every wanted status.
func (b *bench) settled() bool {
	b.p.mu.Lock()
	defer b.p.mu.Unlock()
	for _, e := range b.p.pods {
		if e.want != nil {
			return false
		}
	}
	return b.p.inFlight == 0 && len(b.p.delayed) == 0
}

func (b *bench) run(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); b.p.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

func running(pod *corev1.Pod, ready bool) corev1.PodStatus {
	s := *pod.Status.DeepCopy()
	s.Phase = corev1.PodRunning
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	set(&s, corev1.PodCondition{Type: corev1.PodReady, Status: status})
	return s
}

func set(s *corev1.PodStatus, c corev1.PodCondition) {
	if old := podutil.Condition(s.Conditions, c.Type); old != nil {
		*old = c
		return
	}
	s.Conditions = append(s.Conditions, c)
}

func TestOneRequestAnUpdateAndNoneWithoutChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		b.run(t)
		pod := b.api.add(testPod("a"))
		b.p.Set(pod, running(pod, false))
		synctest.Wait()
		if got, want := b.api.log(), []string{"PATCH /api/v1/namespaces/ns/pods/a/status"}; !slices.Equal(got, want) {
			t.Fatalf("requests %v, want %v", got, want)
		}
		b.p.Set(pod, running(pod, false)) // the watch has not shown the patch yet
		synctest.Wait()
		pod = b.api.get("ns", "a")
		b.p.Set(pod, running(pod, false))
		synctest.Wait()
		if got := b.api.log(); len(got) > 0 {
			t.Errorf("requests without a change: got %v, want none", got)
		}
		if s, known := b.p.newest(pod.UID); !known || s.Phase != corev1.PodRunning {
			t.Errorf("newest status: got phase %q and known %v, want Running", s.Phase, known)
		}
	})
}

// TestRestoredStatusIsSentAgain checks that a status is sent again if etcd was restored from a backup without it.
func TestRestoredStatusIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		b.run(t)
		backup := b.api.add(testPod("a"))
		b.p.Set(backup, running(backup, false))
		synctest.Wait()
		shown := b.api.get("ns", "a")
		b.p.Set(shown, running(shown, false))
		synctest.Wait()
		b.api.log()
		b.api.restore(backup)
		b.p.Set(backup, running(backup, false))
		synctest.Wait()
		if got, want := b.api.log(), []string{"PATCH /api/v1/namespaces/ns/pods/a/status"}; !slices.Equal(got, want) {
			t.Errorf("requests after the restore: got %v, want %v", got, want)
		}
		if got := b.api.get("ns", "a").Status.Phase; got != corev1.PodRunning {
			t.Errorf("phase at the server: got %s, want Running", got)
		}
	})
}

func TestNewestWinsAndStatesBetweenAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		release := make(chan struct{})
		b.api.before = func(string, string) error { <-release; return nil }
		b.run(t)
		pod := b.api.add(testPod("a"))
		for i := range 50 {
			s := running(pod, i%2 == 0)
			s.Message = fmt.Sprint(i)
			b.p.Set(pod, s)
			synctest.Wait()
		}
		close(release)
		synctest.Wait()
		if got := len(b.api.log()); got != 2 {
			t.Errorf("got %d requests, want the first and the newest", got)
		}
		if got := b.api.get("ns", "a").Status.Message; got != "49" {
			t.Errorf("message %q, want the newest", got)
		}
	})
}

func TestReadinessAndEndGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		pods := map[string]*corev1.Pod{}
		for _, name := range []string{"a", "b", "ready", "reset"} {
			pods[name] = b.api.add(testPod(name))
		}
		pods["done"] = b.api.add(deletedPod("done"))
		for _, name := range []string{"a", "b"} {
			s := *pods[name].Status.DeepCopy()
			s.Message = "m"
			b.p.Set(pods[name], s)
		}
		s := *pods["ready"].Status.DeepCopy()
		s.Message = "m"
		b.p.Set(pods["ready"], s) // ordinary at first
		b.p.Set(pods["ready"], running(pods["ready"], true))
		reset := *pods["reset"].Status.DeepCopy()
		reset.Conditions = append(reset.Conditions, corev1.PodCondition{
			Type:   corev1.AllContainersRestarting,
			Status: corev1.ConditionTrue,
		})
		b.p.Set(pods["reset"], reset)
		done := running(pods["done"], false)
		done.Phase = corev1.PodSucceeded
		b.p.SetGone(pods["done"], done)
		b.run(t)
		synctest.Wait()
		var got []string
		for _, r := range b.api.log() {
			verb, path, _ := strings.Cut(r, " ")
			got = append(got, verb+" "+strings.Split(path, "/")[6])
		}
		want := []string{"PATCH ready", "PATCH reset", "PATCH done", "DELETE done", "PATCH a", "PATCH b"}
		if !slices.Equal(got, want) {
			t.Errorf("order %v, want %v", got, want)
		}
	})
}

// TestHeldChangesGoTogether checks that what happens on the way to Ready, or on the way out, costs no request of its
// own.
func TestHeldChangesGoTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		b.p.cfg.Hold = time.Second
		b.run(t)
		pod, slow := b.api.add(testPod("a")), b.api.add(testPod("slow"))
		for i := range 3 {
			for _, p := range []*corev1.Pod{pod, slow} {
				s := *p.Status.DeepCopy()
				s.Message = fmt.Sprint(i)
				b.p.Set(p, s)
			}
			time.Sleep(time.Second / 10)
		}
		b.p.Set(pod, running(pod, true))
		synctest.Wait()
		if got := b.api.log(); len(got) != 1 || !strings.Contains(got[0], "/a/") {
			t.Errorf("requests %q before the hold is over, want the one of the pod that became ready", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := b.api.log(); len(got) != 1 || !strings.Contains(got[0], "/slow/") {
			t.Errorf("requests %q after the hold, want one for the pod that is slow", got)
		}
		if got := b.api.get("ns", "slow").Status.Message; got != "2" {
			t.Errorf("message %q, want the newest", got)
		}
	})
}

func TestFinalDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		b.run(t)
		pod := b.api.add(deletedPod("a"))
		last := running(pod, false)
		last.Phase = corev1.PodFailed
		b.p.SetGone(pod, last)
		synctest.Wait()
		if got := b.api.get("ns", "a"); got != nil {
			t.Error("got the pod still there, want it deleted")
		}
		if !strings.Contains(b.api.bodies[0], `"phase":"Failed"`) {
			t.Errorf("the patch before the delete: got %s, want the phase Failed", b.api.bodies[0])
		}
		if _, known := b.p.newest(pod.UID); known {
			t.Error("the publisher: got that it remembers the pod, want that it does not")
		}
	})
}

// TestRestoredPodIsNotDeleted checks that a pod that a restored etcd has without a deletionTimestamp is not deleted,
// however the publisher learns that.
func TestRestoredPodIsNotDeleted(t *testing.T) {
	for name, c := range map[string]struct {
		away string // the verb that fails before the restore
		then func(p *Publisher, deleted, restored *corev1.Pod, last corev1.PodStatus)
	}{
		"by the answer to a patch": {away: http.MethodPatch},
		"by one that repeats":      {away: http.MethodDelete},
		"by the answer, and asked again with the old object": {
			away: http.MethodPatch,
			then: func(p *Publisher, deleted, _ *corev1.Pod, last corev1.PodStatus) { p.SetGone(deleted, last) },
		},
		"by the watch": {
			away: http.MethodDelete,
			then: func(p *Publisher, _, restored *corev1.Pod, last corev1.PodStatus) { p.SetGone(restored, last) },
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, 0)
			restored := b.api.add(testPod("a"))
			deleted := b.api.add(deletedPod("a"))
			last := *deleted.Status.DeepCopy()
			last.Phase = corev1.PodFailed
			var away atomic.Bool
			away.Store(true)
			b.api.before = func(verb, _ string) error {
				if verb == c.away && away.Load() {
					return apierrors.NewInternalError(errors.New("etcd is away"))
				}
				return nil
			}
			b.run(t)
			b.p.SetGone(deleted, last)
			synctest.Wait()
			b.api.restore(restored)
			away.Store(false)
			time.Sleep(time.Minute)
			if c.then != nil {
				c.then(b.p, deleted, restored, last)
				time.Sleep(time.Minute)
			}
			if got := b.api.get("ns", "a"); got == nil {
				t.Errorf("%s: got the restored pod deleted, want it kept; requests %q", name, b.api.log())
			}
		})
	}
}

func TestPodReplacedUnderTheSameName(t *testing.T) {
	for _, gone := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, 0)
			b.run(t)
			old := b.api.add(deletedPod("a"))
			next := testPod("a")
			next.UID = "other"
			next.Status = running(old, true)
			b.api.add(next)
			s := running(old, false)
			if gone { // nothing to patch, so that the delete's own precondition must hold
				old.Status.Phase = corev1.PodFailed
				s = *old.Status.DeepCopy()
			}
			b.p.set(old, s, gone)
			synctest.Wait()
			if got := b.api.get("ns", "a"); got == nil || got.UID != "other" || !isReady(&got.Status) {
				t.Errorf("gone=%v: got %+v, want the new pod as it was", gone, got)
			}
			if _, known := b.p.newest(old.UID); known {
				t.Errorf("gone=%v: got a status of the old pod, want it forgotten", gone)
			}
			want := []string{"PATCH /api/v1/namespaces/ns/pods/a/status"}
			if gone { // a conflict alone does not say that the UID has changed
				want = []string{"DELETE /api/v1/namespaces/ns/pods/a", "GET /api/v1/namespaces/ns/pods"}
			}
			if got := b.api.log(); !slices.Equal(got, want) {
				t.Errorf("gone=%v: requests %q, want %q", gone, got, want)
			}
		})
	}
}

func TestMirrorPodIsNotDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0)
		b.run(t)
		mirror := testPod("a")
		mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
		mirror = b.api.add(mirror)
		b.p.SetGone(mirror, running(mirror, true))
		synctest.Wait()
		if got := b.api.get("ns", "a"); got == nil || got.Status.Phase != corev1.PodRunning {
			t.Errorf("mirror pod: got %+v, want it Running", got)
		}
	})
}

// TestRandomUpdatesConverge checks that statuses settle on the newest whatever the order of sets, answers, failures
// and watch events.
func TestRandomUpdatesConverge(t *testing.T) {
	for seed := range 300 {
		synctest.Test(t, func(t *testing.T) { randomStatuses(t, uint64(seed)) })
	}
}

// newest returns the status of the last Set, whether or not the API server has it yet; false for an unknown pod.
func (p *Publisher) newest(uid types.UID) (corev1.PodStatus, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, ok := p.pods[uid]
	switch {
	case !ok:
		return corev1.PodStatus{}, false
	case e.want != nil:
		return *e.want, true
	}
	return e.base, true
}

func TestForgottenInFlightStaysForgotten(t *testing.T) {
	for _, failure := range []error{nil, errors.New("connection reset"), apierrors.NewBadRequest("no")} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, 1)
			answer := make(chan error)
			b.api.before = func(string, string) error { return <-answer }
			b.run(t)
			pod := b.api.add(deletedPod("a"))
			b.p.SetGone(pod, running(pod, true))
			synctest.Wait()
			b.p.Forget(pod.UID)
			b.p.Set(pod, running(pod, false)) // a worker that had not heard yet
			b.p.Forget(pod.UID)
			answer <- failure
			if failure == nil {
				answer <- nil // the delete that was part of the job
			}
			time.Sleep(time.Hour)
			if got := len(b.api.log()); got > 2 || (failure != nil && got > 1) {
				t.Errorf("after %v: got %d requests for a pod that was forgotten, want at most a patch and a delete",
					failure, got)
			}
			if !b.settled() {
				t.Errorf("after %v: got something left to send, want nothing", failure)
			}
		})
	}
}

func TestForgetDropsWhatIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		pod := b.api.add(testPod("a"))
		b.p.Set(pod, running(pod, true))
		b.p.Forget(pod.UID)
		b.run(t)
		synctest.Wait()
		if got := b.api.log(); len(got) > 0 {
			t.Errorf("requests for a forgotten pod: got %v, want none", got)
		}
	})
}

func BenchmarkSetUnchanged(b *testing.B) {
	p := New(Config{Log: discard, Client: newFakeAPI().client(b)})
	pod := testPod("a")
	pod.ResourceVersion, pod.Status = "1", fullStatus(2)
	b.ReportAllocs()
	for b.Loop() {
		p.Set(pod, pod.Status)
	}
}

// BenchmarkPublish measures one status from Set to the answer, against an API server that costs next to nothing: it
// answers in protobuf with a fixed object.
func BenchmarkPublish(b *testing.B) {
	pod := testPod("a")
	pod.ResourceVersion, pod.Status = "1000000000", fullStatus(2)
	other := fullStatus(2)
	other.Conditions[2].Status, other.ContainerStatuses[0].Ready = corev1.ConditionFalse, false
	next := [2]corev1.PodStatus{other, fullStatus(2)}
	requests := 0
	api := roundTrip(func(*http.Request) (*http.Response, error) {
		stored := *pod
		stored.Status, stored.ResourceVersion = next[requests%2], fmt.Sprint(1000000001+requests)
		requests++
		var body bytes.Buffer
		encoder := client.Codecs.EncoderForVersion(protobuf.NewSerializer(client.Scheme, client.Scheme),
			corev1.SchemeGroupVersion)
		err := encoder.Encode(&stored, &body)
		return &http.Response{StatusCode: 200, Body: io.NopCloser(&body),
			Header: http.Header{"Content-Type": {"application/vnd.kubernetes.protobuf"}}}, err
	})
	c, err := client.New(&rest.Config{Host: "http://api.test", Transport: api}, 1e6, 1e6, "test")
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	p := New(Config{Log: discard, Client: c.Core, Published: func(*corev1.Pod, time.Duration) { done <- struct{}{} }})
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	go p.Run(ctx)
	b.ReportAllocs()
	updates := 0
	for b.Loop() {
		p.Set(pod, next[updates%2])
		updates++
		<-done
	}
	b.ReportMetric(float64(requests)/float64(updates), "requests/op")
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
