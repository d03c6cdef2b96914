package pods

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/test/kube/apitest"
)

func apiPod(name string, uid types.UID) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:     "ns",
			Name:          name,
			UID:           uid,
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
		},
		Spec: corev1.PodSpec{NodeName: "n1"},
	}
}

// withAPI runs test in a bubble with sources that follow a server, which setup fills first.
func withAPI(t *testing.T, setup func(*apitest.Server), test func(*testing.T, *apitest.Server, *Sources)) {
	synctest.Test(t, func(t *testing.T) {
		server, c := apitest.New(t)
		setup(server)
		s := newSources(Config{NodeName: "n1", API: true, Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{}, 2)
		go func() { s.Run(ctx); ended <- struct{}{} }()
		go func() { s.FollowAPI(ctx, c.Core); ended <- struct{}{} }()
		test(t, server, s)
		cancel()
		<-ended
		<-ended
	})
}

// newest returns the Set that waits after all is still.
func newest(t *testing.T, s *Sources) *Set {
	t.Helper()
	synctest.Wait()
	select {
	case set := <-s.updates:
		return set
	default:
		t.Fatal("got no Set, want one")
		return nil
	}
}

func TestAPIPods(t *testing.T) {
	withAPI(t, func(server *apitest.Server) {
		server.Put(apiPod("a", "1"))
		m := apiPod("s", "2")
		m.Annotations = map[string]string{podutil.AnnotationMirror: "abc"}
		server.Put(m)
		other := apiPod("o", "3")
		other.Spec.NodeName = "n2"
		server.Put(other)
	}, func(t *testing.T, server *apitest.Server, s *Sources) {
		set := newest(t, s)
		if !set.Synced || len(set.Pods) != 1 || len(set.Mirrors) != 1 {
			t.Fatalf("synced %v with %d pods and %d mirror pods, want one of each", set.Synced, len(set.Pods), len(set.Mirrors))
		}
		a := set.Pods["1"]
		if SourceOf(a) != SourceAPI || a.ManagedFields != nil {
			t.Errorf("got source %q and managedFields %v, want api and none", SourceOf(a), a.ManagedFields)
		}
		seen := a.Annotations[podutil.AnnotationSeen]
		if _, err := time.Parse(time.RFC3339Nano, seen); err != nil {
			t.Errorf("annotation %s: got %v, want a time", podutil.AnnotationSeen, err)
		}
		if set.Mirrors[types.NamespacedName{Namespace: "ns", Name: "s"}].UID != "2" {
			t.Errorf("mirror pods: got %v, want ns/s with UID 2", set.Mirrors)
		}

		// A burst without a receiver: one Set waits, and it is the newest.
		time.Sleep(time.Hour)
		for range 50 {
			changed := apiPod("a", "1")
			changed.Labels = map[string]string{"a": "b"}
			changed.Annotations = map[string]string{podutil.AnnotationSource: "file"} // only the node sets it
			server.Put(changed)
		}
		server.Put(apiPod("b", "4"))
		server.Delete("pods", "ns", "s")
		set = newest(t, s)
		if len(set.Pods) != 2 || len(set.Mirrors) != 0 || set.Pods["1"].Labels["a"] != "b" {
			t.Errorf("after a burst: got %d pods, %d mirror pods, labels %v, want 2, 0, a=b",
				len(set.Pods), len(set.Mirrors),
				set.Pods["1"].Labels)
		}
		if got := set.Pods["1"]; got.Annotations[podutil.AnnotationSeen] != seen || SourceOf(got) != SourceAPI {
			t.Errorf("annotations after an update: got %v, want them first seen at %s", got.Annotations, seen)
		}
		synctest.Wait()
		select {
		case <-s.updates:
			t.Error("got a second Set, want one only")
		default:
		}
	})
}

// TestAPIPodWithDangerousIdentity checks that what the API server calls a pod becomes a path here.
func TestAPIPodWithDangerousIdentity(t *testing.T) {
	withAPI(t, func(server *apitest.Server) {
		server.Put(apiPod("a", "../../etc"))
		server.Put(apiPod("b", "2"))
	}, func(t *testing.T, server *apitest.Server, s *Sources) {
		set := newest(t, s)
		if len(set.Pods) != 1 || set.Pods["2"] == nil {
			t.Errorf("got pods %v, want b alone", set.Pods)
		}
		if len(set.Problems) != 1 || !strings.Contains(set.Problems[0].Message, "pod ns/a is rejected: UID") {
			t.Errorf("problems: got %v, want that about the UID", set.Problems)
		}
	})
}

// TestAPIOutage checks that while the API server is away its pods stay, and the Set says what is wrong.
func TestAPIOutage(t *testing.T) {
	withAPI(t, func(server *apitest.Server) { server.Put(apiPod("a", "1")) },
		func(t *testing.T, server *apitest.Server, s *Sources) {
			newest(t, s)
			server.Intercept(
				func(*http.Request) *apierrors.StatusError { return apierrors.NewServiceUnavailable("gone fishing") },
			)
			server.CutWatches()
			time.Sleep(time.Minute)
			set := newest(t, s)
			if len(set.Pods) != 1 || !set.Synced || len(set.Problems) != 1 {
				t.Errorf("%d pods, synced %v, problems %v; want the pod and a problem", len(set.Pods), set.Synced, set.Problems)
			}
			server.Intercept(nil)
			time.Sleep(time.Minute)
			if set = newest(t, s); len(set.Problems) != 0 || len(set.Pods) != 1 {
				t.Errorf("problems: got %v, want none", set.Problems)
			}
		})
}

// TestAPINeverReached checks that a server that was never reached is a source that is waited for.
func TestAPINeverReached(t *testing.T) {
	withAPI(t, func(server *apitest.Server) {
		server.Intercept(func(r *http.Request) *apierrors.StatusError { return apierrors.NewUnauthorized("who are you?") })
	}, func(t *testing.T, server *apitest.Server, s *Sources) {
		set := newest(t, s)
		if set.Synced || len(set.Problems) != 1 || !strings.Contains(set.Problems[0].Message, "who are you?") {
			t.Errorf("got synced %v and the problems %v, want false and one", set.Synced, set.Problems)
		}
	})
}
