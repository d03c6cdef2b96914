package node

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// journal is a log that can be read while it is written.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) count(text string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Count(j.text.String(), text)
}

// TestDeletedNode checks that a deleted object and its lease are not created again before the next start, that the log
// says so, and that the agent updates an object that another client creates instead.
func TestDeletedNode(t *testing.T) {
	const warning = "the Node object was deleted; restart the agent"
	synctest.Test(t, func(t *testing.T) {
		api, log := &fakeAPI{}, &journal{}
		b := start(t, api, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(log, nil)) })
		b.setRuntime(readyRuntime)
		settle(time.Minute)
		if n := log.count(warning); n != 0 {
			t.Errorf("before the deletion: got %d warnings, want none", n)
		}
		shown := func() corev1.ConditionStatus {
			return find(b.Reporter.Shown().Status.Conditions, corev1.NodeReady).Status
		}
		if got, want := shown(), b.ready().Status; got != want {
			t.Errorf("before the deletion: Ready is shown as %s, want %s", got, want)
		}
		var failed atomic.Bool
		api.mu.Lock()
		api.before = func(r *http.Request) error {
			if strings.Contains(r.URL.Path, "/nodes/") && !failed.Swap(true) {
				return apierrors.NewInternalError(errors.New("etcd is away"))
			}
			return nil
		}
		api.mu.Unlock()
		api.remove()
		settle(time.Minute)
		api.mu.Lock()
		api.lease = nil // as the garbage collector does: its owner is gone
		api.mu.Unlock()
		settle(time.Hour)
		if api.get() != nil {
			t.Error("the deleted node: got it created again, want none")
		}
		if l := api.getLease(); l != nil {
			t.Errorf("the lease of the deleted node: got it created again for the owner %v, want none", l.OwnerReferences)
		}
		if n := log.count(warning); n != 1 {
			t.Errorf("after the deletion: got %d warnings, want 1", n)
		}
		if got := shown(); got != corev1.ConditionUnknown {
			t.Errorf("after the deletion: Ready is shown as %s, want Unknown", got)
		}
		b.setRuntime(readyRuntime)
		api.store(existing(corev1.ConditionUnknown))
		settle(5 * time.Second)
		if c := b.ready(); c.Status != corev1.ConditionTrue {
			t.Errorf("Ready condition of the new object: got %+v, want True", c)
		}
		settle(10 * time.Second)
		if l := api.getLease(); l == nil || l.OwnerReferences[0].UID != b.Node().UID {
			t.Errorf("the lease of the new object: got %v, want one that it owns", l)
		}
		if got := shown(); got != corev1.ConditionTrue {
			t.Errorf("new object: Ready is shown as %s, want True", got)
		}
	})
}

// TestNodeBehindLoadBalancer checks that a 404 of a load balancer does not mean that the object was deleted.
func TestNodeBehindLoadBalancer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, log := &fakeAPI{}, &journal{}
		b := start(t, api, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(log, nil)) })
		b.setRuntime(readyRuntime)
		settle(time.Minute)
		api.mu.Lock()
		api.before = func(*http.Request) error {
			return apierrors.NewGenericServerResponse(http.StatusNotFound, "", nodes, testNode, "no backend", 0, true)
		}
		api.mu.Unlock()
		b.Refresh(t.Context())
		b.SetPressure(pressure(corev1.NodeDiskPressure))
		settle(5 * time.Second)
		if n := log.count("the Node object was deleted"); n != 0 {
			t.Errorf("got %d lines that the object was deleted, want none", n)
		}
	})
}

// TestRefresh checks that the Node object can be read while the watch is late.
func TestRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{before: func(r *http.Request) error {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/nodes") {
				return errors.New("nothing can be watched")
			}
			return nil
		}}
		b := start(t, api, nil)
		b.Refresh(t.Context()) // nothing to refresh yet
		b.setRuntime(readyRuntime)
		settle(time.Minute)
		n := api.get()
		n.Labels["zone"] = "a"
		api.store(n)
		if got := b.Node().Labels["zone"]; got != "" {
			t.Fatalf("got label %q without a watch, want none", got)
		}
		b.Refresh(t.Context())
		if got := b.Node().Labels["zone"]; got != "a" {
			t.Errorf("got label %q, want a", got)
		}
	})
}
