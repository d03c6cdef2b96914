package objects

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/test/kube/apitest"
)

// bench is an Objects over a server, in a bubble.
type bench struct {
	*testing.T
	server *apitest.Server
	o      *Objects

	mu      sync.Mutex
	changes []string // the UIDs of each call of OnChange, sorted
	events  []string // as "UID reason: message"
}

func run(t *testing.T, test func(*bench)) {
	synctest.Test(t, func(t *testing.T) {
		server, c := apitest.New(t)
		b := &bench{T: t, server: server}
		b.o = New(Config{
			Core:            c.Core,
			Node:            c.Node,
			Certificates:    c.Certificates,
			TrustBundles:    true,
			PodCertificates: true,
			NodeName:        "node",
			NodeUID:         func(context.Context) (types.UID, error) { return "node-uid", nil },
			Event:           b.event,
			OnChange:        b.changed,
			Log:             slog.New(slog.DiscardHandler),
		})
		defer b.o.Close()
		test(b)
	})
}

func (b *bench) changed(pods []types.UID) {
	slices.Sort(pods)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changes = append(b.changes, fmt.Sprint(pods))
}

func (b *bench) event(pod *corev1.Pod, _, reason, message string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, string(pod.UID)+" "+reason+": "+message)
}

// wantChanges checks and clears the calls of OnChange.
func (b *bench) wantChanges(want ...string) {
	b.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.changes, want) {
		b.Errorf("got changes %v, want %v", b.changes, want)
	}
	b.changes = nil
}

// wantRequests checks and forgets the requests since the last check, in any order.
func (b *bench) wantRequests(want ...string) {
	b.Helper()
	synctest.Wait()
	got := b.server.Requests()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		b.Errorf("requests: got %q, want %q", got, want)
	}
}

func (b *bench) wantValue(name, want string) {
	b.Helper()
	c, err := b.o.ConfigMap(b.Context(), "ns", name)
	if err != nil {
		b.Errorf("get %s: %v", name, err)
	} else if c.Data["k"] != want {
		b.Errorf("%s: got %q, want %q", name, c.Data["k"], want)
	}
}

func (b *bench) wantMissing(name string) {
	b.Helper()
	if _, err := b.o.ConfigMap(b.Context(), "ns", name); !apierrors.IsNotFound(err) {
		b.Errorf("%s: got %v, want not found", name, err)
	}
}

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Annotations: map[string]string{"big": "annotation"}},
		Data:       map[string]string{"k": value},
	}
}

func (b *bench) putImmutable(name, value string) {
	c := configMap(name, value)
	c.Immutable = new(true)
	b.server.Put(c)
}

func ref(name string, watch bool) Ref {
	return Ref{Kind: ConfigMap, Namespace: "ns", Name: name, Watch: watch}
}

// silent is an API server whose answers never arrive.
func (b *bench) silent(r *http.Request) *apierrors.StatusError {
	select {
	case <-r.Context().Done():
	case <-b.Context().Done():
	}
	return nil
}

func down(*http.Request) *apierrors.StatusError { return apierrors.NewServiceUnavailable("down") }

// TestVolumeObjectIsWatched checks that one read and one watch serve all pods that show an object, and end some time
// after the last.
func TestVolumeObjectIsWatched(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Put(configMap("a", "1"))
		b.o.Use("p1", []Ref{ref("a", true)})
		b.o.Use("p2", []Ref{ref("a", true)})
		b.wantValue("a", "1")
		b.wantRequests("list configmaps ns/", "watch configmaps ns/")
		b.wantChanges()
		if c, _ := b.o.ConfigMap(b.Context(), "ns", "a"); c.Annotations != nil || c.Name != "a" || c.UID == "" {
			b.Errorf("metadata: got %+v, want the identity alone", c.ObjectMeta)
		}

		b.server.Put(configMap("a", "2"))
		b.server.Put(configMap("other", "x"))
		b.wantChanges("[p1 p2]")
		b.wantValue("a", "2")
		b.wantRequests()

		b.o.Use("p1", nil)
		b.server.Delete("configmaps", "ns", "a")
		b.wantChanges("[p2]")
		if _, err := b.o.ConfigMap(b.Context(), "ns", "a"); !apierrors.IsNotFound(err) ||
			err.Error() != `configmap "a" not found` {
			b.Errorf("a deleted object: got %v, want not found", err)
		}
		b.server.Put(configMap("a", "3"))
		b.wantChanges("[p2]")

		b.o.Use("p2", nil)
		time.Sleep(linger / 2)
		b.o.Use("p3", []Ref{ref("a", true)}) // in time
		b.wantValue("a", "3")
		time.Sleep(2 * linger)
		b.wantRequests()
		b.o.Use("p3", nil)
		time.Sleep(linger + time.Second)
		synctest.Wait()
		if n := b.server.Watches(); n != 0 || len(b.o.entries) != 0 {
			b.Errorf("got %d watches and %d entries left, want none", n, len(b.o.entries))
		}
	})
}

func TestUseReplaces(t *testing.T) {
	run(t, func(b *bench) {
		for _, n := range []string{"a", "b", "c"} {
			b.server.Put(configMap(n, n))
		}
		b.o.Use("p", []Ref{ref("a", true), ref("b", true), ref("b", false)})
		synctest.Wait()
		b.o.Use("p", []Ref{ref("b", true), ref("c", true)})
		time.Sleep(2 * linger)
		b.server.Requests()
		b.wantValue("b", "b")
		b.wantValue("c", "c")
		b.wantRequests()
		b.wantValue("a", "a") // still there for who asks, by a read
		b.wantRequests("get configmaps ns/a")
	})
}

// TestEnvironmentObjectIsNotWatched checks that what only an environment needs is read each time, and not watched.
func TestEnvironmentObjectIsNotWatched(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Put(configMap("a", "1"))
		b.o.Use("p", []Ref{ref("a", false)})
		b.wantRequests()
		b.wantValue("a", "1")
		b.server.Put(configMap("a", "2"))
		b.wantValue("a", "2")
		b.wantRequests("get configmaps ns/a", "get configmaps ns/a")
		b.wantChanges()

		// While the server is away, the last that was read must do: a crashed container can start again.
		b.server.Intercept(down)
		b.wantValue("a", "2")
	})
}

// TestMissingObjectIsWatched checks that a missing object is waited for, whatever needs it, and its creation wakes
// the pod at once.
func TestMissingObjectIsWatched(t *testing.T) {
	for _, watched := range []bool{true, false} {
		run(t, func(b *bench) {
			b.o.Use("p", []Ref{ref("a", watched)})
			for range 5 {
				if _, err := b.o.ConfigMap(b.Context(), "ns", "a"); !apierrors.IsNotFound(err) {
					b.Errorf("a missing object: got %v, want not found", err)
				}
				time.Sleep(time.Second)
			}
			synctest.Wait()
			if n := b.server.Watches(); n != 1 {
				b.Errorf("got %d watches, want one that waits for the object", n)
			}
			if n := len(b.server.Requests()); n > 4 {
				b.Errorf("requests to wait for an object: got %d, want at most 4", n)
			}
			b.server.Put(configMap("a", "1"))
			b.wantChanges("[p]")
			b.wantValue("a", "1")
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := b.server.Watches() == 1; got != watched {
				b.Errorf("watched: got %v, want %v", got, watched)
			}
		})
	}
}

// TestMissingIsNews checks that a pod learns that an object does not exist which could not be read before: it may be
// optional.
func TestMissingIsNews(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Intercept(down)
		b.o.Use("p", []Ref{ref("a", true)})
		if _, err := b.o.ConfigMap(b.Context(), "ns", "a"); !apierrors.IsServiceUnavailable(err) {
			b.Errorf("got %v, want the error of the API server", err)
		}
		b.server.Intercept(nil)
		time.Sleep(time.Minute)
		b.wantChanges("[p]")
		time.Sleep(time.Hour)
		b.wantChanges()
	})
}

// TestMissingWhileServerIsAway checks that it is remembered that an object does not exist: a container for which it is
// optional can start again.
func TestMissingWhileServerIsAway(t *testing.T) {
	for _, watched := range []bool{true, false} {
		run(t, func(b *bench) {
			b.o.Use("p", []Ref{ref("a", watched)})
			b.wantMissing("a")
			synctest.Wait()
			b.server.Intercept(down)
			b.server.CutWatches()
			for range 3 {
				time.Sleep(time.Minute)
				b.wantMissing("a")
			}
			b.server.Intercept(nil)
			b.server.Put(configMap("a", "1"))
			time.Sleep(time.Minute)
			b.wantChanges("[p]")
			b.wantValue("a", "1")
		})
	}
}

func TestImmutableObjectIsNotWatched(t *testing.T) {
	run(t, func(b *bench) {
		b.putImmutable("a", "1")
		b.server.Put(configMap("b", "1"))
		b.o.Use("p", []Ref{ref("a", true), ref("b", true)})
		b.wantValue("a", "1")
		synctest.Wait()
		if n := b.server.Watches(); n != 1 {
			b.Errorf("got %d watches, want none of the immutable object", n)
		}
		b.putImmutable("b", "2")
		b.wantChanges("[p]")
		b.wantValue("b", "2")
		if n := b.server.Watches(); n != 0 {
			b.Errorf("got %d watches, want none", n)
		}
		b.server.Requests()
		b.o.Use("q", []Ref{ref("a", true), ref("b", false)})
		b.wantValue("a", "1")
		b.wantValue("b", "2")
		b.wantValue("a", "1")
		b.wantRequests("get configmaps ns/a", "get configmaps ns/b") // for q, which is new to them
	})
}

// TestImmutableObjectIsReplaced checks that a pod does not get an immutable object as pods before it have seen it,
// whether they are gone or not: it may have been deleted and created again with another content.
func TestImmutableObjectIsReplaced(t *testing.T) {
	for _, watched := range []bool{true, false} {
		for _, gone := range []bool{true, false} {
			run(t, func(b *bench) {
				for _, value := range []string{"1", "2"} {
					b.putImmutable("a", value)
					pod := types.UID("p" + value)
					b.o.Use(pod, []Ref{ref("a", watched)})
					b.wantValue("a", value)
					if gone {
						b.o.Use(pod, nil)
					}
					b.server.Delete("configmaps", "ns", "a")
					time.Sleep(linger / 2)
				}
				b.wantChanges() // a pod keeps the one with which it began
			})
		}
	}
}

// TestImmutableObjectIsConfirmed checks that a new user of an immutable object waits for it if it no longer exists, and
// that what is known must do while the API server does not answer.
func TestImmutableObjectIsConfirmed(t *testing.T) {
	run(t, func(b *bench) {
		b.putImmutable("a", "1")
		b.o.Use("p1", []Ref{ref("a", true)})
		b.wantValue("a", "1")
		b.server.Delete("configmaps", "ns", "a")
		b.wantValue("a", "1")
		b.server.Intercept(down)
		b.o.Use("p2", []Ref{ref("a", true)})
		b.wantValue("a", "1")
		b.server.Intercept(nil)
		b.wantMissing("a")
		synctest.Wait()
		b.putImmutable("a", "2")
		b.wantChanges("[p1 p2]")
		b.wantValue("a", "2")
	})
}

// TestWatchResumesAfterBrokenConnection checks that a cut watch is taken up, and what changed or went meanwhile is
// noticed.
func TestWatchResumesAfterBrokenConnection(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Put(configMap("a", "1"))
		b.server.Put(configMap("b", "1"))
		b.server.Put(configMap("c", "1"))
		b.o.Use("p", []Ref{ref("a", true), ref("b", true), ref("c", true)})
		synctest.Wait()
		b.server.Intercept(down)
		b.server.CutWatches()
		time.Sleep(time.Minute)
		b.server.Put(configMap("a", "2"))
		b.server.Delete("configmaps", "ns", "b")
		b.wantValue("a", "1") // what is known stays
		b.wantChanges()
		b.server.Intercept(nil)
		time.Sleep(time.Minute)
		b.wantChanges("[p]", "[p]")
		b.wantValue("a", "2")
		b.wantValue("c", "1")
		if _, err := b.o.ConfigMap(b.Context(), "ns", "b"); !apierrors.IsNotFound(err) {
			b.Errorf("an object deleted during a cut: got %v, want not found", err)
		}
	})
}

// TestChangedBeforeWatch checks that a change between the read and the start of the watch is noticed, also if the
// watch was delayed.
func TestChangedBeforeWatch(t *testing.T) {
	for what, want := range map[string]string{"changed": "2", "deleted": ""} {
		run(t, func(b *bench) {
			b.server.Put(configMap("a", "1"))
			b.server.Intercept(func(r *http.Request) *apierrors.StatusError {
				if r.URL.Query().Get("watch") == "" {
					return nil
				}
				b.server.Intercept(nil)
				if want == "" {
					b.server.Delete("configmaps", "ns", "a")
				} else {
					b.server.Put(configMap("a", want))
				}
				return nil
			})
			b.o.Use("p", []Ref{ref("a", true)})
			b.wantChanges("[p]")
			c, err := b.o.ConfigMap(b.Context(), "ns", "a")
			if want == "" && !apierrors.IsNotFound(err) || want != "" && (err != nil || c.Data["k"] != want) {
				b.Errorf("%s: got %v, %v", what, c, err)
			}
		})
	}
}

// TestFirstReadMayBeFromMemory checks that an object is read from etcd if the API server's memory lacks it, because
// that may lag behind.
func TestFirstReadMayBeFromMemory(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Intercept(func(r *http.Request) *apierrors.StatusError {
			if r.URL.Query().Get("resourceVersion") == "" {
				b.server.Put(configMap("a", "1"))
			}
			return nil
		})
		b.o.Use("p", []Ref{ref("a", true)})
		b.wantValue("a", "1")
		b.wantRequests("list configmaps ns/", "list configmaps ns/", "watch configmaps ns/")
	})
}

// TestReadAfterBrokenConnectionIsConsistent checks that what is known is never taken back to something older: after a
// cut the object is read from etcd.
func TestReadAfterBrokenConnectionIsConsistent(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Put(configMap("a", "1"))
		b.o.Use("p", []Ref{ref("a", true)})
		b.wantValue("a", "1")
		synctest.Wait()
		b.server.Requests()
		b.server.Intercept(func(r *http.Request) *apierrors.StatusError {
			if v := r.URL.Query().Get("resourceVersion"); r.URL.Query().Get("watch") == "" && v != "" {
				b.Errorf("%s: got resourceVersion %q, want none: the newest state", r.URL.Path, v)
			}
			return nil
		})
		b.server.CutWatches()
		time.Sleep(time.Minute)
		b.wantRequests("list configmaps ns/", "watch configmaps ns/")
	})
}

// TestEnvironmentIsReadForEachStart checks that an environment is not refreshed, so it gets what is in etcd now.
func TestEnvironmentIsReadForEachStart(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Put(configMap("a", "1"))
		b.server.Intercept(func(r *http.Request) *apierrors.StatusError {
			if v := r.URL.Query().Get("resourceVersion"); v != "" {
				b.Errorf("%s: got resourceVersion %q, want none: the newest state", r.URL.Path, v)
			}
			return nil
		})
		b.o.Use("p", []Ref{ref("a", false)})
		b.wantValue("a", "1")
	})
}

// TestForbiddenForAMoment checks that a read is retried while the authorizer does not know yet that the pod is bound
// to this node.
func TestForbiddenForAMoment(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Put(configMap("a", "1"))
		start := time.Now()
		b.server.Intercept(func(r *http.Request) *apierrors.StatusError {
			if time.Since(start) < 100*time.Millisecond {
				return apierrors.NewForbidden(corev1.Resource("configmaps"), "a", nil)
			}
			return nil
		})
		b.o.Use("p", []Ref{ref("a", true)})
		b.wantValue("a", "1")
		if d := time.Since(start); d > 200*time.Millisecond {
			b.Errorf("time of the read: got %s, want at most 200ms", d)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if b.server.Watches() != 1 {
			b.Error("the watch was not opened again")
		}
	})
}

func TestForbiddenForEver(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Intercept(func(r *http.Request) *apierrors.StatusError {
			return apierrors.NewForbidden(corev1.Resource("secrets"), "s", nil)
		})
		b.o.Use("p", []Ref{{Kind: Secret, Namespace: "ns", Name: "s", Watch: true}})
		start := time.Now()
		if _, err := b.o.Secret(b.Context(), "ns", "s"); !apierrors.IsForbidden(err) ||
			!strings.Contains(err.Error(), "get Secret ns/s") {
			b.Errorf("got %v, want forbidden, with the name of the Secret", err)
		}
		if d := time.Since(start); d > client.AuthorizerLag {
			b.Errorf("time until the error: got %s, want at most %s", d, client.AuthorizerLag)
		}
		b.server.Intercept(nil)
		b.server.Put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}})
		time.Sleep(time.Minute)
		b.wantChanges("[p]")
	})
}

// TestSilentServer checks that a server that does not answer is named, before the caller's time is up and after.
func TestSilentServer(t *testing.T) {
	run(t, func(b *bench) {
		hang := make(chan struct{})
		defer close(hang)
		b.server.Intercept(func(r *http.Request) *apierrors.StatusError {
			select {
			case <-hang:
			case <-r.Context().Done():
			}
			return nil
		})
		b.o.Use("p", []Ref{ref("a", true)})
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		if _, err := b.o.ConfigMap(ctx, "ns", "a"); err == nil ||
			!strings.Contains(err.Error(), "the API server has not answered") {
			b.Errorf("got %v, want an error that the API server has not answered", err)
		}
	})
}

// TestRequestsAtRest checks that at rest an object costs two requests in half an hour or more.
func TestRequestsAtRest(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Put(configMap("a", "1"))
		b.o.Use("p", []Ref{ref("a", true)})
		synctest.Wait()
		b.server.Requests()
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if n := len(b.server.Requests()); n < 48 || n > 96 {
			b.Errorf("got %d requests a day, want 48 to 96", n)
		}
		b.wantChanges()
	})
}

// TestConcurrentUse checks many users and changes at once; it is meant for the race detector.
func TestConcurrentUse(t *testing.T) {
	run(t, func(b *bench) {
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				pod := types.UID(fmt.Sprint(i))
				for j := range 50 {
					name := fmt.Sprint("c", (i+j)%3)
					b.o.Use(pod, []Ref{ref(name, j%2 == 0)})
					b.server.Put(configMap(name, fmt.Sprint(j)))
					b.o.ConfigMap(b.Context(), "ns", name)
					time.Sleep(time.Duration(i*j) * time.Millisecond)
				}
				b.o.Use(pod, nil)
			})
		}
		wg.Wait()
		time.Sleep(2 * linger)
		synctest.Wait()
		if n := b.server.Watches(); n != 0 || len(b.o.entries) != 0 {
			b.Errorf("got %d watches and %d entries left, want none", n, len(b.o.entries))
		}
	})
}
