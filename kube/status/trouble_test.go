package status

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/nodelet/nodelet/kube/client"
)

func TestOutageLosesNothingAndMakesNoStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 8)
		down := b.api.failWith(errors.New("connection refused"))
		var log strings.Builder
		b.p.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		b.run(t)
		var pods []*corev1.Pod
		for i := range 110 {
			pod := b.api.add(testPod(fmt.Sprint("p", i)))
			pods = append(pods, pod)
			b.p.Set(pod, running(pod, true))
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		tries := len(b.api.log())
		if tries < 60 || tries > 150 {
			t.Errorf("got %d requests in 10 minutes without an API server, want about one in 7.5 s", tries)
		}
		if got := strings.Count(log.String(), "cannot publish"); got < 1 || got > 8 {
			t.Errorf("got %d lines about the outage, want one for each of the first 8 requests at most", got)
		}
		newer := running(pods[7], false)
		b.p.Set(pods[7], newer)
		down.Store(false)
		time.Sleep(outageMax + time.Second)
		synctest.Wait()
		if !b.settled() {
			t.Fatal("not all statuses arrived within 11 s of the API server's return")
		}
		for _, pod := range pods {
			got := b.api.get("ns", pod.Name)
			if isReady(&got.Status) != (pod != pods[7]) {
				t.Errorf("pod %s: got ready %v, want %v", pod.Name, isReady(&got.Status), pod != pods[7])
			}
		}
		if got := len(b.api.log()); got != 110 {
			t.Errorf("got %d requests after the outage, want 110", got)
		}
	})
}

func TestRefusedPodDoesNotHoldUpOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.api.before = func(_, path string) error {
			if strings.Contains(path, "/pods/bad/") {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "bad", errors.New("not yours"))
			}
			return nil
		}
		b.run(t)
		bad, good := b.api.add(testPod("bad")), b.api.add(testPod("good"))
		start := time.Now()
		b.p.Set(bad, running(bad, true))
		b.p.Set(good, running(good, true))
		synctest.Wait()
		if got := b.api.get("ns", "good"); !isReady(&got.Status) || time.Since(start) > 0 {
			t.Error("the status of the good pod: got it delayed, want it at once")
		}
		time.Sleep(5 * time.Minute)
		if got := len(b.api.log()); got < 10 || got > 30 {
			t.Errorf("got %d requests in 5 minutes, want the refused one retried with back-off up to 30 s", got)
		}
	})
}

func TestAnswersThatAreNotTheAPIServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		var left atomic.Int32
		left.Store(3)
		b.api.before = func(string, string) error {
			if left.Add(-1) >= 0 {
				return notJSON(http.StatusNotFound)
			}
			return nil
		}
		b.run(t)
		pod := b.api.add(testPod("a"))
		b.p.Set(pod, running(pod, true))
		time.Sleep(time.Minute)
		if _, known := b.p.newest(pod.UID); !known {
			t.Error("a proxy's 404: got that the pod is gone, want that it is not")
		}
		if got := b.api.get("ns", "a"); !isReady(&got.Status) {
			t.Error("got no status, want it sent")
		}
	})
}

// TestConflictAboutSomethingElseIsRetried checks that the text of a conflict contains the name of the pod, here one
// that contains "uid".
func TestConflictAboutSomethingElseIsRetried(t *testing.T) {
	for _, verb := range []string{http.MethodPatch, http.MethodDelete} {
		t.Run(verb, func(t *testing.T) {
			sentAgain(t, verb, apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "druid-0",
				errors.New("the object has been modified")))
		})
	}
}

// TestDeleteBeforeServerKnowsPods checks that a final delete is repeated that the API server answers with 404 from the
// memory of an admission plugin, which does not have the pod yet.
func TestDeleteBeforeServerKnowsPods(t *testing.T) {
	sentAgain(t, http.MethodDelete, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "druid-0"))
}

// sentAgain checks that a request with the verb, first answered with refusal while the pod exists, is repeated soon,
// whether the API server then lists the pod or fails to list any.
func sentAgain(t *testing.T, verb string, refusal error) {
	for _, unlisted := range []error{nil, apierrors.NewInternalError(errors.New("etcd is away"))} {
		sentAgainAfter(t, verb, refusal, unlisted)
	}
}

func sentAgainAfter(t *testing.T, verb string, refusal, unlisted error) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		var refusals, lists atomic.Int32
		refusals.Store(1)
		lists.Store(1)
		b.api.before = func(v, _ string) error {
			switch {
			case v == verb && refusals.Add(-1) >= 0:
				return refusal
			case v == http.MethodGet && lists.Add(-1) >= 0:
				return unlisted
			}
			return nil
		}
		b.run(t)
		pod := b.api.add(deletedPod("druid-0"))
		b.p.SetGone(pod, running(pod, false))
		synctest.Wait()
		if _, known := b.p.newest(pod.UID); !known {
			t.Errorf("after %v, and the list %v: got the pod forgotten as if it were deleted, want its status kept",
				refusal, unlisted)
		}
		time.Sleep(time.Minute)
		if got := b.api.get("ns", "druid-0"); got != nil {
			t.Errorf("after a minute the pod exists with phase %s, want it deleted", got.Status.Phase)
		}
		if lists.Load() > 0 {
			t.Errorf("after %v: got no list of pods, want one", refusal)
		}
	})
}

func TestHangingRequestHurtsOnlyItsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		hang := make(chan struct{})
		b.api.before = func(_, path string) error {
			if strings.Contains(path, "/pods/stuck/") {
				<-hang
			}
			return nil
		}
		b.run(t)
		stuck := b.api.add(testPod("stuck"))
		b.p.Set(stuck, running(stuck, true))
		for i := range 20 {
			pod := b.api.add(testPod(fmt.Sprint("p", i)))
			b.p.Set(pod, running(pod, true))
		}
		synctest.Wait()
		for i := range 20 {
			if got := b.api.get("ns", fmt.Sprint("p", i)); !isReady(&got.Status) {
				t.Errorf("pod p%d is not ready, want it ready beside the request that hangs", i)
			}
		}
		close(hang)
	})
}

// TestOneRequestABackOff checks that a pod that is refused is sent once after each back-off, also if it was set again
// while it waited for its turn.
func TestOneRequestABackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		hang := make(chan struct{})
		var refused atomic.Int32
		b.api.before = func(_, path string) error {
			if strings.Contains(path, "/pods/stuck/") {
				<-hang
				return nil
			}
			refused.Add(1)
			return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "bad", errors.New("not yours"))
		}
		b.run(t)
		bad, stuck := b.api.add(testPod("bad")), b.api.add(testPod("stuck"))
		b.p.Set(bad, running(bad, false))
		synctest.Wait()
		b.p.Set(stuck, running(stuck, true))
		time.Sleep(sendCountFor / 2) // the back-off is over; the request that hangs leaves no place for one that has failed
		b.p.Set(bad, running(bad, true))
		before := refused.Load()
		close(hang)
		synctest.Wait()
		if got := refused.Load() - before; got != 1 {
			t.Errorf("got %d requests at once, want one", got)
		}
	})
}

// TestSlowWebhook checks that statuses and deletions arrive if the API server answers late, because a webhook does not
// answer it, and that those of other pods do not wait until then.
func TestSlowWebhook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		b.api.before = func(verb, path string) error {
			if strings.Contains(path, "/pods/slow") && verb != http.MethodGet {
				time.Sleep(60 * time.Second)
			}
			return nil
		}
		b.run(t)
		for i := range 3 {
			slow := b.api.add(deletedPod(fmt.Sprint("slow", i)))
			b.p.SetGone(slow, running(slow, false))
		}
		synctest.Wait()
		good := b.api.add(testPod("good"))
		b.p.Set(good, running(good, true))
		time.Sleep(31 * time.Second)
		synctest.Wait()
		if got := b.api.get("ns", "good"); !isReady(&got.Status) {
			t.Error("after 31 s the status of the good pod waits for the slow ones, want it sent")
		}
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		for i := range 3 {
			if got := b.api.get("ns", fmt.Sprint("slow", i)); got != nil {
				t.Errorf("the pod %s exists with phase %s, want it deleted", got.Name, got.Status.Phase)
			}
		}
	})
}

// TestSlowNamespace checks that the statuses of other pods do not wait for all those of a namespace whose requests the
// API server, or this client, gives up after a minute, and that these are still sent, and reported once each. The agent
// sets the status of a pod again each minute while it is being deleted. An outage in between changes nothing of this.
func TestSlowNamespace(t *testing.T) {
	for name, failure := range map[string]error{
		"server": apierrors.NewTimeoutError("request did not complete within requested timeout", 0),
		"client": context.DeadlineExceeded,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 8)
				var log strings.Builder
				b.p.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
				var works, away atomic.Bool
				b.api.before = func(_, path string) error {
					wasAway := away.Load()
					if strings.Contains(path, "/pods/slow") && !works.Load() && !wasAway {
						time.Sleep(time.Minute)
						if !away.Load() {
							return failure
						}
					}
					if wasAway || away.Load() {
						return &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
					}
					return nil
				}
				b.run(t)
				slow := make([]*corev1.Pod, 40)
				for i := range slow {
					slow[i] = b.api.add(deletedPod(fmt.Sprint("slow", i)))
				}
				for i := range 4 {
					for range 5 {
						for _, pod := range slow {
							b.p.SetGone(pod, running(pod, false))
						}
						time.Sleep(time.Minute)
					}
					pod := b.api.add(testPod(fmt.Sprint("good", i)))
					b.p.Set(pod, running(pod, i%2 == 0)) // urgent if ready
					synctest.Wait()
					if b.api.get("ns", pod.Name).Status.Phase != corev1.PodRunning {
						t.Errorf("%s: its status waits for those of slow pods, want it sent at once", pod.Name)
					}
				}
				if got := strings.Count(log.String(), "cannot publish"); got != len(slow) {
					t.Errorf("got %d lines about %d slow pods, want one for each", got, len(slow))
				}
				away.Store(true)
				pod := b.api.add(testPod("during"))
				b.p.Set(pod, running(pod, false))
				time.Sleep(3 * time.Minute)
				away.Store(false)
				time.Sleep(outageMax + sendCountFor + time.Second) // one of the slow ones may be sent before it
				synctest.Wait()
				if b.api.get("ns", pod.Name).Status.Phase != corev1.PodRunning {
					t.Error("after an outage the status of a good pod waits for many slow ones, want it sent after one at most")
				}
				works.Store(true)
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				for _, pod := range slow {
					if b.api.get("ns", pod.Name) != nil {
						t.Errorf("%s exists two minutes after its requests are fast again, want it deleted", pod.Name)
					}
				}
			})
		})
	}
}

// TestSlowIsNoOutage checks which errors say that one request took too long, and nothing about the API server.
func TestSlowIsNoOutage(t *testing.T) {
	late := client.Within(t.Context(), 0, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	dial := &net.OpError{Op: "dial", Err: context.DeadlineExceeded}
	for err, want := range map[error]bool{
		late:                                     true,
		apierrors.NewTimeoutError("too long", 0): true,
		&url.Error{Op: "Patch", Err: dial}:       false,
		&url.Error{Op: "Patch", Err: errors.New("reset")}:         false,
		notJSON(http.StatusGatewayTimeout):                        false,
		apierrors.NewServiceUnavailable("starting"):               false,
		apierrors.NewInternalError(errors.New("calling webhook")): false,
	} {
		if got := isSlow(err); got != want {
			t.Errorf("%v: got slow %v, want %v", err, got, want)
		}
	}
}

func TestFewPodsReturnQuicklyAfterALongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 8)
		down := b.api.failWith(apierrors.NewServiceUnavailable("starting"))
		b.run(t)
		for i := range 2 {
			pod := b.api.add(testPod(fmt.Sprint("p", i)))
			b.p.Set(pod, running(pod, true))
		}
		for range 50 { // the time of return must not matter
			time.Sleep(10 * time.Minute)
			down.Store(false)
			time.Sleep(outageMax + time.Second)
			synctest.Wait()
			if !b.settled() {
				t.Fatal("not all statuses arrived within 11 s of the API server's return")
			}
			down.Store(true)
			for i := range 2 {
				pod := b.api.get("ns", fmt.Sprint("p", i))
				b.p.Set(pod, running(pod, !isReady(&pod.Status)))
			}
		}
	})
}

// TestLongRetryAfter checks that what answers instead of the API server, and asks for an hour of patience, such as a
// load balancer that is being repaired, does not hold up the statuses for so long.
func TestLongRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 8)
		resource := schema.GroupResource{Resource: "pods"}
		down := b.api.failWith(apierrors.NewGenericServerResponse(
			http.StatusServiceUnavailable, http.MethodPatch, resource, "p", "maintenance", 3600, true))
		b.run(t)
		for i := range 2 {
			pod := b.api.add(testPod(fmt.Sprint("p", i)))
			b.p.Set(pod, running(pod, true))
		}
		synctest.Wait()
		down.Store(false)
		time.Sleep(askedMax + time.Second)
		synctest.Wait()
		if !b.settled() {
			t.Errorf("not all statuses arrived within %s of the API server's return", askedMax+time.Second)
		}
	})
}

// TestBackoffStartsOver checks that a status which the API server refuses once is sent again soon, also if the pod had
// waited long for an earlier one.
func TestBackoffStartsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 8)
		var refusals atomic.Int64
		refusals.Store(math.MaxInt64)
		b.api.before = func(string, string) error {
			if refusals.Add(-1) >= 0 {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", errors.New("no"))
			}
			return nil
		}
		b.run(t)
		pod := b.api.add(testPod("p"))
		b.p.Set(pod, running(pod, false))
		time.Sleep(10 * time.Minute)
		refusals.Store(0)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if !b.settled() {
			t.Fatal("the status was not sent after the API server accepted it")
		}
		refusals.Store(1)
		b.p.Set(pod, running(pod, true))
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if !b.settled() {
			t.Error("the status waits longer than 3 s after one refusal, want the first delay again")
		}
	})
}

// TestServerErrorsOfOneNamespace checks that pods whose requests the API server cannot serve, because it cannot reach
// an admission webhook for their namespace, do not delay the statuses of others.
func TestServerErrorsOfOneNamespace(t *testing.T) {
	for name, c := range map[string]struct {
		pods    int
		takes   time.Duration
		failure error
	}{
		"internal error":      {40, 0, apierrors.NewInternalError(errors.New("failed calling webhook"))},
		"late internal error": {40, 10 * time.Second, apierrors.NewInternalError(errors.New("failed calling webhook"))},
		"timeout":             {3, 0, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 8)
				b.api.before = func(_, path string) error {
					if strings.Contains(path, "/pods/bad") {
						time.Sleep(c.takes)
						return c.failure
					}
					return nil
				}
				b.run(t)
				for i := range c.pods {
					bad := b.api.add(deletedPod(fmt.Sprint("bad", i)))
					b.p.SetGone(bad, running(bad, false))
				}
				for i := range 10 {
					time.Sleep(time.Minute)
					pod := b.api.add(testPod(fmt.Sprint("good", i)))
					b.p.Set(pod, running(pod, false))
					if i == 0 { // until then pods have failed and none has succeeded
						time.Sleep(outageMax)
					}
					synctest.Wait()
					if b.api.get("ns", pod.Name).Status.Phase != corev1.PodRunning {
						t.Errorf("%s, with no outage: its status waits, want it sent at once", pod.Name)
					}
				}
			})
		})
	}
}

// TestServerErrorsOfAllMakeNoStorm checks that pods which the API server fails at are retried about as often as in the
// kubelet, every ten seconds each, and arrive as soon.
func TestServerErrorsOfAllMakeNoStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 8)
		down := b.api.failWith(apierrors.NewInternalError(errors.New("failed calling webhook")))
		b.run(t)
		for i := range 110 {
			pod := b.api.add(testPod(fmt.Sprint("p", i)))
			b.p.Set(pod, running(pod, true))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		b.api.log()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := len(b.api.log()); n > 110*100 {
			t.Errorf("got %d requests for 110 pods in 10 minutes, want about 80 for each", n)
		}
		down.Store(false)
		time.Sleep(outageMax + time.Second)
		synctest.Wait()
		if !b.settled() {
			t.Error("not all statuses arrived within 11 s")
		}
	})
}

// TestUnsent checks that statuses count as unsent until the API server has them, but not those of an outage, nor of a
// pod whose requests fail again and again.
func TestUnsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 8)
		b.p.cfg.Hold = Hold
		var down, silent atomic.Bool
		b.api.before = func(_, path string) error {
			time.Sleep(300 * time.Millisecond)
			if silent.Load() {
				time.Sleep(20 * time.Second)
			}
			if down.Load() {
				return errors.New("connection refused")
			}
			if strings.Contains(path, "/refused/") {
				return apierrors.NewInternalError(errors.New("calling webhook"))
			}
			return nil
		}
		b.run(t)
		end := func(names ...string) (took time.Duration) {
			for i, name := range names {
				pod := b.api.add(testPod(name))
				b.p.Set(pod, running(pod, i%2 == 0))
			}
			began := time.Now()
			for b.p.Unsent() && time.Since(began) < time.Minute {
				time.Sleep(100 * time.Millisecond)
			}
			return time.Since(began)
		}
		many := make([]string, 40)
		for i := range many {
			many[i] = fmt.Sprint("p", i)
		}
		if took := end(many...); took >= time.Minute || !b.settled() {
			t.Errorf("after %s: got statuses that are not sent, want all 40 sent", took)
		}
		if took := end("refused"); took < time.Second || took > 10*time.Second {
			t.Errorf("got %s of waiting for a pod whose requests fail, want some seconds", took)
		}
		silent.Store(true)
		if took := end(many...); took < time.Second || took > 10*time.Second {
			t.Errorf("got %s of waiting for an API server that does not answer, want some seconds", took)
		}
		silent.Store(false)
		time.Sleep(10 * time.Minute)
		down.Store(true)
		if took := end("first", "second", "third"); took > 10*time.Second {
			t.Errorf("got %s of waiting in an outage, want some seconds", took)
		}
		down.Store(false)
		time.Sleep(podRetryMax)
		if took := end("last"); took >= time.Minute || b.api.get("ns", "first").Status.Phase != corev1.PodRunning {
			t.Errorf("got %s of waiting after the outage, want all but the refused status sent", took)
		}
	})
}
