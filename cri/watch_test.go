package cri_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// watcher collects what Watch reports.
type watcher struct {
	mu       sync.Mutex
	pods     []types.UID
	ended    cri.Instance // the last one
	connects int
	end      chan error
	cancel   context.CancelFunc
}

func watch(t *testing.T, c *cri.Client) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &watcher{end: make(chan error, 1), cancel: cancel}
	go func() {
		w.end <- c.Watch(ctx, func(uid types.UID, i cri.Instance) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.pods, w.ended = append(w.pods, uid), i
		}, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.connects++
		})
	}()
	t.Cleanup(cancel)
	return w
}

// take returns what was reported since the last take.
func (w *watcher) take() (pods []types.UID, connects int) {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	pods, connects = slices.Compact(w.pods), w.connects
	w.pods, w.connects = nil, 0
	return pods, connects
}

// TestWatch checks that events name their pods; a cut stream and a restarted runtime are followed again, each with a
// call to relist.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{})
		w := watch(t, c)
		if pods, connects := w.take(); len(pods) != 0 || connects != 1 {
			t.Fatalf("at the start: got %v and %d connects, want no hint and 1", pods, connects)
		}
		sandbox := runSandbox(t, c, "web", 0)
		app := startContainer(t, c, sandbox, "web", "app", 0)
		if pods, connects := w.take(); len(pods) != 0 || connects != 0 {
			t.Errorf("after a start, which its caller knows of: got %v and %d connects, want none", pods, connects)
		}
		rt.ExitContainer(app, 1, "")
		if pods, _ := w.take(); !slices.Equal(pods, []types.UID{"uid-web"}) {
			t.Errorf("after an exit: got %v, want a hint for the pod", pods)
		}
		if want := (cri.Instance{Sandbox: sandbox, Container: app}); w.ended != want {
			t.Errorf("after an exit: got a hint for %+v, want %+v", w.ended, want)
		}

		rt.CutStreams()
		check(t, c.StopPodSandbox(t.Context(), runSandbox(t, c, "missed", 0)))
		time.Sleep(time.Second)
		if pods, connects := w.take(); len(pods) != 0 || connects != 1 {
			t.Errorf("after a cut stream: got %v and %d connects, want no hint and 1", pods, connects)
		}

		rt.Crash(true)
		time.Sleep(5 * time.Minute)
		if pods, connects := w.take(); len(pods) != 0 || connects != 0 {
			t.Errorf("while the runtime is down: got %v and %d connects, want none", pods, connects)
		}
		check(t, rt.Restart())
		time.Sleep(4 * time.Second)
		if _, connects := w.take(); connects != 1 {
			t.Errorf("after a restart: got %d connects, want 1", connects)
		}
		check(t, c.RemovePodSandbox(t.Context(), sandbox))
		if pods, connects := w.take(); len(pods) != 0 || connects != 0 {
			t.Errorf("after a removal, which its caller knows of: got %v and %d connects, want none", pods, connects)
		}
		sandbox = runSandbox(t, c, "web", 1)
		check(t, c.StopPodSandbox(t.Context(), sandbox))
		if pods, _ := w.take(); !slices.Equal(pods, []types.UID{"uid-web"}) || w.ended != (cri.Instance{Sandbox: sandbox}) {
			t.Errorf("after the end of a sandbox: got %v and %+v, want a hint for it", pods, w.ended)
		}

		w.cancel()
		if err := <-w.end; !errors.Is(err, context.Canceled) {
			t.Errorf("the watch ended with %v, want context.Canceled", err)
		}
	})
}

// TestWatchUnimplemented checks that a runtime without events lets the caller fall back.
func TestWatchUnimplemented(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{})
		rt.NoEvents = true
		if err := <-watch(t, c).end; !cri.IsUnimplemented(err) {
			t.Errorf("got %v", err)
		}
	})
}

// TestWatchOfOneReader checks that the events of containerd before 2.0, which gives each to one reader only, are left
// to other readers. A reader that has gone would still take one.
func TestWatchOfOneReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{})
		for _, old := range []string{"v1.7.29-k3s1", "1.7.24~ds1"} {
			rt.RuntimeVersion = old
			w := watch(t, c)
			if _, connects := w.take(); connects != 0 {
				t.Fatalf("containerd %s: a stream was opened", old)
			}
			if err := <-w.end; err == nil || !strings.Contains(err.Error(), "more than one reader since") {
				t.Errorf("containerd %s: got %v", old, err)
			}
		}
		for _, good := range [][2]string{{"containerd", "2.0.0-rc.1"}, {"containerd", "devel"}, {"cri-o", "1.35.2"}} {
			rt.RuntimeName, rt.RuntimeVersion = good[0], good[1]
			w := watch(t, c)
			if _, connects := w.take(); connects != 1 {
				t.Errorf("%s: no stream was opened", good)
			}
			w.cancel()
			<-w.end
		}
	})
}

// noService is the answer of containerd to all calls if it cannot load its CRI plugin.
var noService = status.Error(codes.Unimplemented, "unknown service runtime.v1.RuntimeService")

// TestWatchWithoutService checks that events come again when containerd gets its CRI plugin back.
func TestWatchWithoutService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{})
		w := watch(t, c)
		w.take()
		broken := rt.Inject(&fake.Fault{Err: noService})
		rt.CutStreams()
		time.Sleep(10 * time.Minute)
		rt.Release(broken)
		time.Sleep(10 * time.Second)
		w.take()
		check(t, c.StopPodSandbox(t.Context(), runSandbox(t, c, "web", 0)))
		if pods, _ := w.take(); len(pods) != 1 {
			t.Errorf("after the end of a sandbox: got hints for %v, want one", pods)
		}
	})
}

// TestWatchEmpty checks that a runtime that accepts the call and ends the stream without events lets the caller fall
// back too.
func TestWatchEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{})
		rt.EmptyEvents = true
		if err := <-watch(t, c).end; err == nil || !strings.Contains(err.Error(), "enable_pod_events") {
			t.Errorf("got %v", err)
		}
	})
}

// TestWatchDoesNotSpin checks that a stream that fails at once is opened again ever more rarely.
func TestWatchDoesNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{})
		bad := rt.Inject(&fake.Fault{Verb: "GetContainerEvents", Err: status.Error(codes.Internal, "broken")})
		w := watch(t, c)
		time.Sleep(10 * time.Minute)
		if n := bad.Hits(); n < 50 || n > 70 {
			t.Errorf("got %d tries in ten minutes, want 50 to 70", n)
		}
		rt.Release(bad)
		time.Sleep(10 * time.Second)
		w.take()
		check(t, c.StopPodSandbox(t.Context(), runSandbox(t, c, "web", 0)))
		if pods, _ := w.take(); len(pods) != 1 {
			t.Errorf("the stream did not come back: got %v, want one", pods)
		}
	})
}
