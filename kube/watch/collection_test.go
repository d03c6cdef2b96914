package watch_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/kube/watch"
	"github.com/nodelet/nodelet/test/kube/apitest"
)

// state is a Sink that keeps what it receives.
type state struct {
	mu       sync.Mutex
	objs     map[string]metav1.Object
	replaced int
	shrank   bool // a replacement lacked an object that was there before
	troubles []error
}

func (s *state) Replace(objs []metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replaced++
	before := s.objs
	s.objs = map[string]metav1.Object{}
	for _, o := range objs {
		s.objs[o.GetName()] = o
	}
	for name := range before {
		s.shrank = s.shrank || s.objs[name] == nil
	}
}

func (s *state) Set(o metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objs[o.GetName()] = o
}

func (s *state) Delete(o metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objs, o.GetName())
}

func (s *state) Trouble(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.troubles = append(s.troubles, err)
}

// counts returns the number of replacements, and the calls of Trouble in the form "error nil ".
func (s *state) counts() (replaces int, troubles string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, err := range s.troubles {
		troubles += map[bool]string{true: "nil ", false: "error "}[err == nil]
	}
	return s.replaced, troubles
}

func (s *state) names() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var n []string
	for k := range s.objs {
		n = append(n, k)
	}
	slices.Sort(n)
	return strings.Join(n, " ")
}

func pod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:     "ns",
			Name:          name,
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
		},
		Spec: corev1.PodSpec{NodeName: node},
	}
}

// follow runs test in a bubble with a server that holds pods a and b of node n1 and c of node n2, followed for n1.
func follow(t *testing.T, setup func(*apitest.Server), test func(*testing.T, *apitest.Server, *state)) {
	synctest.Test(t, func(t *testing.T) {
		server, c := apitest.New(t)
		server.Put(pod("a", "n1"))
		server.Put(pod("b", "n1"))
		server.Put(pod("c", "n2"))
		if setup != nil {
			setup(server)
		}
		st := &state{}
		stop := start(t, c, st)
		synctest.Wait()
		test(t, server, st)
		stop()
	})
}

// start follows the pods of node n1. stop returns when that has ended.
func start(t *testing.T, c *client.Client, st *state) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		watch.Target{Client: c.Core, Resource: "pods", FieldSelector: "spec.nodeName=n1"}.Follow(ctx, st)
	}()
	return func() { cancel(); <-done }
}

func down(*http.Request) *apierrors.StatusError { return apierrors.NewServiceUnavailable("down") }

func busy(*http.Request) *apierrors.StatusError { return apierrors.NewTooManyRequests("busy", 1) }

func want(t *testing.T, st *state, names string) {
	t.Helper()
	synctest.Wait()
	if got := st.names(); got != names {
		t.Fatalf("got pods %q, want %q", got, names)
	}
}

// notWithThisEtcd refuses to stream the initial state, as an API server does whose etcd is too old for it.
func notWithThisEtcd(r *http.Request) *apierrors.StatusError {
	if r.URL.Query().Get("sendInitialEvents") == "" {
		return nil
	}
	return apierrors.NewInternalError(errors.New("the required storage feature RequestWatchProgress is disabled"))
}

func TestFollow(t *testing.T) {
	for name, setup := range map[string]func(*apitest.Server){
		"streamed initial state": nil,
		"listed initial state":   func(s *apitest.Server) { s.NoWatchList() },
		"refused in the stream":  func(s *apitest.Server) { s.InterceptWatches(notWithThisEtcd) },
	} {
		t.Run(name, func(t *testing.T) {
			follow(t, setup, func(t *testing.T, server *apitest.Server, st *state) {
				time.Sleep(time.Second) // a server without WatchList costs one back-off
				want(t, st, "a b")
				if a := st.objs["a"]; len(a.GetManagedFields()) != 0 {
					t.Error("managedFields: got them kept, want them dropped")
				}
				server.Put(pod("d", "n1"))
				server.Put(pod("e", "n2"))
				server.Delete("pods", "ns", "a")
				want(t, st, "b d")
				if n, _ := st.counts(); n != 1 {
					t.Errorf("got %d replacements of the state, want 1", n)
				}
			})
		})
	}
}

// TestFollowResumesAfterBrokenConnection checks that a broken connection resumes at the last version: no change is
// missed, and nothing is listed again.
func TestFollowResumesAfterBrokenConnection(t *testing.T) {
	follow(t, nil, func(t *testing.T, server *apitest.Server, st *state) {
		server.Compact()
		server.Bookmark() // moves the version to resume from past what has expired
		synctest.Wait()
		server.Requests()
		for range 5 {
			time.Sleep(time.Minute)
			server.CutWatches()
			synctest.Wait()
			server.Delete("pods", "ns", "a")
			server.Put(pod("d", "n1"))
			time.Sleep(time.Second)
			want(t, st, "b d")
		}
		if got := server.Requests(); len(got) != 5 {
			t.Errorf("requests for five broken connections: got %q, want one watch each", got)
		}
		if n, troubles := st.counts(); n != 1 || troubles != "" {
			t.Errorf("got %d replacements with troubles %q, want 1 without", n, troubles)
		}
	})
}

// TestFollowReadsAllAfterExpiry checks that when the version has expired, the whole state is read once, and missed
// deletions are noticed. The API server says so in the stream; a proxy with a cache of its own may do it before.
func TestFollowReadsAllAfterExpiry(t *testing.T) {
	for name, answer := range map[string]func(*http.Request) *apierrors.StatusError{
		"event": nil,
		"answer": func(r *http.Request) *apierrors.StatusError {
			if r.URL.Query().Get("resourceVersion") == "" {
				return nil
			}
			return apierrors.NewResourceExpired("too old resource version")
		},
	} {
		t.Run(name, func(t *testing.T) {
			follow(t, nil, func(t *testing.T, server *apitest.Server, st *state) {
				time.Sleep(time.Minute)
				server.Intercept(busy) // keeps the version, other than an outage
				server.CutWatches()
				time.Sleep(time.Minute)
				server.Delete("pods", "ns", "a")
				server.Put(pod("d", "n1"))
				server.Compact()
				server.Requests()
				server.Intercept(answer)
				time.Sleep(time.Minute)
				want(t, st, "b d")
				if got := server.Requests(); len(got) != 2 {
					t.Errorf("got the requests %q, want a refused watch and a streamed state", got)
				}
				if n, troubles := st.counts(); n != 2 || troubles != "error nil " {
					t.Errorf("got %d replacements with troubles %q, want 2 with one error and one nil", n, troubles)
				}
			})
		})
	}
}

// TestFollowReadsAllAfterOutage checks that after an outage the whole state is read, although the server knows the
// version: etcd may have been restored from a backup, and what happened before that version is another history. An
// answer that the server is busy, or has an error with this request, is no outage.
func TestFollowReadsAllAfterOutage(t *testing.T) {
	for name, c := range map[string]struct {
		answer *apierrors.StatusError
		reads  int
	}{
		"away":  {apierrors.NewServiceUnavailable("down"), 2},
		"error": {apierrors.NewInternalError(errors.New("etcd is away")), 2},
		"proxy": {apierrors.NewGenericServerResponse(http.StatusNotFound, "", corev1.Resource("pods"), "", "no backend",
			0, true), 2},
		"busy":     {apierrors.NewTooManyRequests("busy", 1), 1},
		"rejected": {apierrors.NewForbidden(corev1.Resource("pods"), "", nil), 1},
	} {
		t.Run(name, func(t *testing.T) {
			follow(t, nil, func(t *testing.T, server *apitest.Server, st *state) {
				time.Sleep(time.Minute)
				server.Intercept(func(*http.Request) *apierrors.StatusError { return c.answer })
				server.CutWatches()
				time.Sleep(time.Minute)
				server.Lose("pods", "ns", "a")
				server.Intercept(nil)
				time.Sleep(time.Minute)
				if n, _ := st.counts(); n != c.reads {
					t.Errorf("got %d reads of the state, want %d", n, c.reads)
				}
				if c.reads == 2 {
					want(t, st, "b")
				}
			})
		})
	}
}

// TestFollowReadsAllOfAnotherServer checks that everything is read again when the kubeconfig names another API server:
// it may have another history, in which the same versions stand for other changes. Other changes of the kubeconfig,
// such as a renewed certificate, cost nothing.
func TestFollowReadsAllOfAnotherServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, _ := apitest.New(t)
		second, _ := apitest.New(t)
		for server, names := range map[*apitest.Server]string{first: "a b", second: "a d e"} {
			for _, name := range strings.Fields(names) {
				server.Put(pod(name, "n1"))
			}
		}
		transport := client.NewTransport(time.Minute)
		use := func(host string, server *apitest.Server) {
			if err := transport.Use(&rest.Config{Host: host, Dial: server.Dial}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		use("http://first", first)
		c, err := client.New(transport.Config(""), -1, 0, "test")
		if err != nil {
			t.Fatal(err)
		}
		st := &state{}
		stop := start(t, c, st)
		synctest.Wait()
		want(t, st, "a b")
		use("http://first", first)
		if replaced, _ := st.counts(); replaced != 1 {
			t.Errorf("the same server: got all read %d times, want once", replaced)
		}
		use("http://second", second)
		want(t, st, "a d e")
		if replaced, troubles := st.counts(); replaced != 2 || troubles != "" {
			t.Errorf("another server: got all read %d times, troubles %q, want twice and none", replaced, troubles)
		}
		stop()
		transport.CloseIdleConnections()
	})
}

// TestFollowBacksOff checks that a server that is down is asked less and less often, and never given up.
func TestFollowBacksOff(t *testing.T) {
	follow(t, func(s *apitest.Server) { s.Intercept(down) }, func(t *testing.T, server *apitest.Server, st *state) {
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := len(server.Requests()); n < 20 || n > 60 {
			t.Errorf("got %d requests in ten minutes of outage, want one each 15 to 30 s", n)
		}
		if n, troubles := st.counts(); n != 0 || troubles != "error " {
			t.Errorf("got %d states and troubles %q, want no state and one trouble", n, troubles)
		}
		server.Intercept(nil)
		time.Sleep(30 * time.Second)
		want(t, st, "a b")
		if _, troubles := st.counts(); troubles != "error nil " {
			t.Errorf("got troubles %q, want them ended", troubles)
		}
	})
}

// TestFollowAtRest checks that at rest, streams are renewed after their timeout of 5 to 10 minutes, without a list.
func TestFollowAtRest(t *testing.T) {
	follow(t, nil, func(t *testing.T, server *apitest.Server, st *state) {
		server.Requests()
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if n := len(server.Requests()); n < 10 || n > 25 {
			t.Errorf("got %d requests in two hours of rest, want 12 to 24", n)
		}
		if n, troubles := st.counts(); n != 1 || troubles != "" {
			t.Errorf("got %d states and troubles %q, want one state and no trouble", n, troubles)
		}
	})
}

// TestOpenSingleObject checks that a watch of a single object with Open needs no list: version 0 brings its present
// state first.
func TestOpenSingleObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, c := apitest.New(t)
		server.Put(pod("a", "n1"))
		server.Put(pod("b", "n1"))
		s, err := watch.Target{Client: c.Core, Resource: "pods", Namespace: "ns", FieldSelector: "metadata.name=b"}.
			Open(t.Context(), metav1.ListOptions{ResourceVersion: "0"}, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		server.Put(pod("a", "n1"))
		server.Delete("pods", "ns", "b")
		for _, want := range []string{"ADDED b", "DELETED b"} {
			ev, err := s.Next()
			if err != nil {
				t.Fatal(err)
			}
			if got := string(ev.Type) + " " + ev.Object.GetName(); got != want {
				t.Errorf("got event %q, want %q", got, want)
			}
		}
	})
}

// silent is a server that never answers.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestOpenWithoutAnswer checks that Open gives up soon if no answer begins. Others wait for its place.
func TestOpenWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := client.New(&rest.Config{Host: "http://silent", Transport: silent{}}, -1, 0, "test")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		target := watch.Target{Client: c.Core, Resource: "secrets", Namespace: "ns"}
		_, err = target.Open(ctx, metav1.ListOptions{}, time.Hour)
		if ctx.Err() != nil || err == nil || !strings.Contains(err.Error(), "has not answered within 30s") {
			t.Errorf("got error %v (after a minute: %v), want that there is no answer, in time", err, ctx.Err() != nil)
		}
	})
}

// TestFollowNeverGoesBack checks that a state that was listed is never older than what was seen before: pods that are
// missing from it are ended, and their volumes removed. The API server lags behind etcd; what it has in memory does
// not count.
func TestFollowNeverGoesBack(t *testing.T) {
	lagging := func(s *apitest.Server) {
		s.NoWatchList()
		s.Lag()
		s.Put(pod("d", "n1"))
	}
	follow(t, lagging, func(t *testing.T, server *apitest.Server, st *state) {
		want(t, st, "a b d")
		server.Put(pod("e", "n1"))
		server.Compact()
		server.CutWatches()
		time.Sleep(time.Minute)
		want(t, st, "a b d e")
		if got, _ := st.counts(); got != 2 {
			t.Errorf("got %d replacements of the state, want 2", got)
		}
		if st.shrank {
			t.Error("a replacement: got fewer objects than existed, want all")
		}
	})
}

// emptyWatches is a proxy that answers each watch with 200 and an empty body while on is true.
type emptyWatches struct {
	http.RoundTripper
	on atomic.Bool
}

func (p *emptyWatches) RoundTrip(r *http.Request) (*http.Response, error) {
	if p.on.Load() && r.URL.Query().Get("watch") == "true" {
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
	}
	return p.RoundTripper.RoundTrip(r)
}

// TestFollowListsIfWatchesEndAtOnce checks that while each watch ends without an event, the pods are listed at the
// start and again and again, with one trouble, and that they are watched when a watch lasts.
func TestFollowListsIfWatchesEndAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := apitest.New(t)
		server.Put(pod("a", "n1"))
		cfg := server.Config(t)
		proxy := &emptyWatches{RoundTripper: cfg.Transport}
		proxy.on.Store(true)
		cfg.Transport = proxy
		c, err := client.New(cfg, -1, 0, "test")
		if err != nil {
			t.Fatal(err)
		}
		st := &state{}
		done := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		defer func() { cancel(); <-done }()
		go func() {
			defer close(done)
			watch.Target{Client: c.Core, Resource: "pods", FieldSelector: "spec.nodeName=n1"}.Follow(ctx, st)
		}()
		want(t, st, "a")
		for _, names := range []string{"a b", "a b c"} {
			server.Put(pod(names[len(names)-1:], "n1"))
			time.Sleep(time.Minute)
			want(t, st, names)
		}
		if _, troubles := st.counts(); troubles != "error " {
			t.Errorf("got troubles %q, want one error", troubles)
		}
		proxy.on.Store(false)
		time.Sleep(time.Minute)
		server.Put(pod("d", "n1"))
		want(t, st, "a b c d")
		if _, troubles := st.counts(); troubles != "error nil " {
			t.Errorf("with a watch that lasts: got troubles %q, want them ended", troubles)
		}
	})
}

// TestFollowStreamsAgainAfterServerError checks that one bad answer, or an error in the stream, does not decide how the
// state is read from then on.
func TestFollowStreamsAgainAfterServerError(t *testing.T) {
	pods := corev1.Resource("pods")
	badGateway := apierrors.NewGenericServerResponse(http.StatusBadGateway, "GET", pods, "", "", 0, true)
	lagging := apierrors.NewTimeoutError("Too large resource version", 1)
	lagging.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	answers, events := (*apitest.Server).Intercept, (*apitest.Server).InterceptWatches
	for name, c := range map[string]struct {
		intercept func(*apitest.Server, func(*http.Request) *apierrors.StatusError)
		err       *apierrors.StatusError
	}{
		"internal error":          {answers, apierrors.NewInternalError(errors.New("etcdserver: leader changed"))},
		"bad gateway":             {answers, badGateway},
		"timeout":                 {answers, lagging},
		"internal error as event": {events, apierrors.NewInternalError(errors.New("etcdserver: leader changed"))},
		"timeout as event":        {events, lagging},
	} {
		t.Run(name, func(t *testing.T) {
			once := func(s *apitest.Server) {
				c.intercept(s, func(*http.Request) *apierrors.StatusError {
					c.intercept(s, nil)
					return c.err
				})
			}
			follow(t, once, func(t *testing.T, server *apitest.Server, st *state) {
				time.Sleep(time.Minute)
				want(t, st, "a b")
				server.Put(pod("d", "n1"))
				synctest.Wait()
				server.Compact()
				server.CutWatches()
				server.Requests()
				time.Sleep(time.Minute)
				want(t, st, "a b d")
				if got := server.Count("list"); got != 0 {
					t.Errorf("got %d lists after the second loss of the state, want 0: the server streams", got)
				}
			})
		})
	}
}
