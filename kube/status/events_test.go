package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var podRef = Ref{Kind: "Pod", Namespace: "ns", Name: "a", UID: "a-uid", FieldPath: "spec.containers{app}"}

func runRecorder(t *testing.T, api *fakeAPI) *Recorder {
	r := NewRecorder(RecorderConfig{Log: discard, Client: api.client(t), Node: "node-1"})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

func (f *fakeAPI) eventList() []*corev1.Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []*corev1.Event
	for _, e := range f.events {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b *corev1.Event) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// written waits until all events have been written.
func written() {
	time.Sleep(eventHold)
	synctest.Wait()
}

func TestRepeatsCountUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		r := runRecorder(t, api)
		start := time.Now()
		for range 3 {
			r.Event(podRef, "Warning", "BackOff", "Back-off restarting failed container")
			time.Sleep(time.Minute)
		}
		list := api.eventList()
		if len(list) != 1 {
			t.Fatalf("got %d events, want 1", len(list))
		}
		e := list[0]
		if e.Count != 3 || !e.FirstTimestamp.Time.Equal(start) || !e.LastTimestamp.Time.Equal(start.Add(2*time.Minute)) {
			t.Errorf("got count %d from %v to %v, want 3 over two minutes", e.Count, e.FirstTimestamp, e.LastTimestamp)
		}
		if e.Source.Component != "kubelet" || e.Source.Host != "node-1" || e.ReportingController != "kubelet" {
			t.Errorf("got source %+v and reporter %q, want the kubelet of node-1", e.Source, e.ReportingController)
		}
		want := corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "ns", Name: "a", UID: "a-uid",
			FieldPath: "spec.containers{app}"}
		if e.InvolvedObject != want || e.Namespace != "ns" || !strings.HasPrefix(e.Name, "a.") {
			t.Errorf("got an event about %+v with the name %s/%s, want one about %+v",
				e.InvolvedObject, e.Namespace, e.Name, want)
		}
	})
}

// TestEventAnnotations checks that an event keeps its annotations, also when it is repeated.
func TestEventAnnotations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		r := runRecorder(t, api)
		for range 2 {
			r.record(podRef, "Warning", "Evicted", "low on memory", map[string]string{"starved_resource": "memory"})
			written()
		}
		list := api.eventList()
		if len(list) != 1 || list[0].Count != 2 || list[0].Annotations["starved_resource"] != "memory" {
			t.Errorf("got %+v, want one event with its annotation", list)
		}
	})
}

// TestLongEventIsCut checks that an event has at most eventMessage bytes: the name of an image may be as long as a pod
// can be, and many events may wait.
func TestLongEventIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		r := runRecorder(t, api)
		r.Event(podRef, "Normal", "Pulling", "Pulling image "+strings.Repeat("x", 1<<20))
		written()
		if list := api.eventList(); len(list) != 1 || len(list[0].Message) > eventMessage {
			t.Errorf("got %d events, the first of %d bytes, want one of at most %d", len(list), len(list[0].Message),
				eventMessage)
		}
	})
}

func TestExpiredEventIsCreatedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		r := runRecorder(t, api)
		r.Event(podRef, "Normal", "Pulled", "m")
		written()
		api.mu.Lock()
		clear(api.events)
		api.mu.Unlock()
		r.Event(podRef, "Normal", "Pulled", "m")
		written()
		if list := api.eventList(); len(list) != 1 || list[0].Count != 2 {
			t.Errorf("events %+v, want one with count 2", list)
		}
	})
}

// TestNodeEvents checks that events about the node are in the default namespace, and have the UID of the Node object
// from when it is known, by which tools find them.
func TestNodeEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		uid := types.UID("")
		r := runRecorder(t, api)
		r.cfg.NodeUID = func() types.UID { return uid }
		for _, want := range []types.UID{"node-1", "node-uid"} {
			r.NodeEvent("Normal", "Starting", "Starting kubelet.")
			written()
			list := api.eventList()
			about := list[len(list)-1].InvolvedObject
			if list[len(list)-1].Namespace != "default" || about.Namespace != "" || about.UID != want {
				t.Errorf("events: got %+v, want the last one in default and about the UID %s", list, want)
			}
			uid = "node-uid"
		}
	})
}

// TestEventsOfNamelessPods checks that there are no events about a pod that is known by its UID alone.
func TestEventsOfNamelessPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		r := runRecorder(t, api)
		r.PodEvent(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "0123"}}, "", "Warning", "FailedKillPod", "no")
		written()
		if list := api.eventList(); len(list) > 0 {
			t.Errorf("got events %+v, want none", list)
		}
	})
}

// TestClaimEvents checks that events about a claim are in its namespace and have its UID.
func TestClaimEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		r := runRecorder(t, api)
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "c-uid"}}
		r.ClaimEvent(claim, "Normal", "FileSystemResizeSuccessful", "m")
		written()
		want := corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "ns", Name: "data",
			UID: "c-uid"}
		if list := api.eventList(); len(list) != 1 || list[0].InvolvedObject != want || list[0].Namespace != "ns" {
			t.Errorf("got %+v, want one in ns about %+v", list, want)
		}
	})
}

func TestSimilarEventsAreCombined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		r := runRecorder(t, api)
		for i := range 15 {
			r.Event(podRef, "Warning", "FailedMount", fmt.Sprint("try ", i))
			written()
		}
		list := api.eventList()
		if len(list) != 10 {
			t.Fatalf("got %d events, want 9 of their own and a combined one", len(list))
		}
		last := list[9]
		if last.Message != combinedPrefix+"try 14" || last.Count != 6 {
			t.Errorf("combined event: got %q with count %d, want try 14 with count 6", last.Message, last.Count)
		}
	})
}

func TestSpamIsThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		r := runRecorder(t, api)
		for range 100 {
			r.Event(podRef, "Warning", "BackOff", "m")
			written()
		}
		if n := len(api.log()); n != spamBurst {
			t.Errorf("got %d requests for 100 events, want %d", n, spamBurst)
		}
		other := podRef
		other.Name = "b"
		r.Event(other, "Warning", "BackOff", "m")
		written()
		if n := len(api.log()); n != 1 {
			t.Errorf("event of another object: got it throttled, want it sent")
		}
		time.Sleep(spamRefill)
		r.Event(podRef, "Warning", "BackOff", "m")
		written()
		if list := api.eventList(); list[0].Count != 101 {
			t.Errorf("count %d, want 101: throttled repeats count too", list[0].Count)
		}
	})
}

// TestEventsAreHeld checks that what happens within a second is written after it, in order and each thing once.
func TestEventsAreHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		r := runRecorder(t, api)
		r.Event(podRef, "Normal", "Created", "m")
		r.Event(podRef, "Warning", "Unhealthy", "m")
		time.Sleep(eventHold / 2)
		r.Event(podRef, "Warning", "Unhealthy", "m")
		time.Sleep(eventHold/2 - 1)
		synctest.Wait()
		if n := len(api.log()); n != 0 {
			t.Errorf("got %d requests before a second is over, want 0", n)
		}
		time.Sleep(1)
		synctest.Wait()
		list := api.eventList()
		if n := len(api.log()); n != 2 || len(list) != 2 || list[0].Reason != "Created" || list[1].Count != 2 {
			t.Errorf("got %d requests and the events %+v, want 2 and Created once, the other twice", n, list)
		}
	})
}

// TestSlowAPIServer checks that events which are late are written for several objects at a time, those of one object in
// order, and that others are not.
func TestSlowAPIServer(t *testing.T) {
	for name, c := range map[string]struct {
		answer     time.Duration // how long the API server takes
		within     time.Duration
		atOnceMost int32
	}{
		"fast": {10 * time.Millisecond, 2 * time.Second, 1},
		"slow": {2 * time.Second, 50 * time.Second, eventWriters},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const pods = 20
				api := newFakeAPI()
				var writing, most atomic.Int32
				api.before = func(string, string) error {
					if n := writing.Add(1); n > most.Load() {
						most.Store(n)
					}
					defer writing.Add(-1)
					time.Sleep(c.answer)
					return nil
				}
				r := runRecorder(t, api)
				for _, reason := range []string{"Pulled", "Created", "Started"} {
					for i := range pods {
						r.Event(Ref{Kind: "Pod", Namespace: "ns", Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i))},
							"Normal", reason, "m")
					}
				}
				time.Sleep(c.within)
				synctest.Wait()
				if got := len(api.eventList()); got != 3*pods {
					t.Fatalf("events after %s: got %d, want %d", c.within, got, 3*pods)
				}
				if got := most.Load(); got != c.atOnceMost {
					t.Errorf("requests at a time: got up to %d, want %d", got, c.atOnceMost)
				}
				list := api.eventList()
				slices.SortFunc(list, func(a, b *corev1.Event) int { // by the time of their creation
					return cmp.Or(len(a.ResourceVersion)-len(b.ResourceVersion), strings.Compare(a.ResourceVersion, b.ResourceVersion))
				})
				reasons := map[string][]string{}
				for _, e := range list {
					reasons[e.InvolvedObject.Name] = append(reasons[e.InvolvedObject.Name], e.Reason)
				}
				for pod, got := range reasons {
					if want := []string{"Pulled", "Created", "Started"}; !slices.Equal(got, want) {
						t.Errorf("events of pod %s: got %q, want %q", pod, got, want)
					}
				}
			})
		})
	}
}

// TestEventsBeforeTheEnd checks that what is held when the agent ends is written still.
func TestEventsBeforeTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		r := NewRecorder(RecorderConfig{Log: discard, Client: api.client(t), Node: "node-1"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		r.Event(podRef, "Normal", "Created", "m")
		synctest.Wait()
		cancel()
		<-done
		if n := len(api.eventList()); n != 1 {
			t.Errorf("got %d events, want 1", n)
		}
	})
}

func TestEventsOutliveAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		down := api.failWith(errors.New("connection refused"))
		r := runRecorder(t, api)
		for i := range eventQueue + 100 { // one is being written, 1000 wait
			ref := podRef
			ref.Name = fmt.Sprint("p", i)
			r.Event(ref, "Normal", "Started", "m")
			if i == 0 {
				written()
			}
		}
		time.Sleep(10 * time.Minute)
		if tries := len(api.log()); tries > 120 {
			t.Errorf("got %d requests in 10 minutes without an API server, want at most 120", tries)
		}
		down.Store(false)
		time.Sleep(15 * time.Second)
		if got := len(api.eventList()); got != eventQueue+1 {
			t.Errorf("got %d events, want %d", got, eventQueue+1)
		}
	})
}

func TestRefusedEventIsNotRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.before = func(string, string) error {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "", errors.New("no"))
		}
		r := runRecorder(t, api)
		r.Event(podRef, "Normal", "Started", "m")
		time.Sleep(time.Hour)
		if n := len(api.log()); n != 1 {
			t.Errorf("got %d requests, want 1", n)
		}
	})
}

// TestServerErrorOfOneEvent checks that an event which the API server cannot take, because it cannot reach an admission
// webhook for its namespace, does not hold up those of others.
func TestServerErrorOfOneEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI()
		api.before = func(_, path string) error {
			if strings.Contains(path, "/namespaces/bad/") {
				return apierrors.NewInternalError(errors.New("failed calling webhook"))
			}
			return nil
		}
		r := runRecorder(t, api)
		bad := podRef
		bad.Namespace = "bad"
		r.Event(bad, "Normal", "Started", "m")
		r.Event(podRef, "Normal", "Started", "m")
		time.Sleep(10 * time.Minute)
		if got := api.eventList(); len(got) != 1 || got[0].Namespace != podRef.Namespace {
			t.Errorf("events after 10 minutes: got %v, want that of the good namespace", got)
		}
	})
}

// TestSlowEvent checks that an event whose requests take too long, because webhooks of its namespace do not answer,
// does not hold up those of others for more than some minutes, but is written if that is over before.
func TestSlowEvent(t *testing.T) {
	for name, c := range map[string]struct {
		took, until time.Duration
		want        int
	}{
		"for good":           {time.Minute, time.Hour, 1},
		"for a minute":       {10 * time.Second, time.Minute, 2},
		"once, for a minute": {time.Minute, time.Minute, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, began := newFakeAPI(), time.Now()
				api.before = func(_, path string) error {
					if !strings.Contains(path, "/namespaces/slow/") || time.Since(began) > c.until {
						return nil
					}
					time.Sleep(c.took)
					return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
				}
				r := runRecorder(t, api)
				slow := podRef
				slow.Namespace = "slow"
				r.Event(slow, "Normal", "Started", "m")
				r.Event(podRef, "Normal", "Started", "m")
				time.Sleep(5 * time.Minute)
				if got := api.eventList(); len(got) != c.want {
					t.Errorf("after 5 minutes got %d events, want %d", len(got), c.want)
				}
			})
		})
	}
}

func TestEventNamesFitAndDiffer(t *testing.T) {
	c := newCorrelator("node")
	name := func(message string) string {
		object := strings.Repeat("a", 235) + "." + strings.Repeat("b", 17)
		event, _ := c.observe(occurrence{ref: Ref{Name: object}, message: message, at: time.Unix(1, 0)})
		return event.Name
	}
	first, second := name("first"), name("second")
	if len(first) > maxEventName || first == second || strings.Contains(first, "..") {
		t.Errorf("names: got %q and %q, want different valid ones", first, second)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	var m recentMap[int]
	for i := range 100 * recentKeys {
		m.put(uint64(i), i)
		m.put(math.MaxUint64, i)
	}
	if n := len(m.young) + len(m.old); n > recentKeys {
		t.Errorf("got %d keys, want at most %d", n, recentKeys)
	}
	if v, ok := m.get(math.MaxUint64); !ok || v != 100*recentKeys-1 {
		t.Error("a key in use was forgotten")
	}
}
