package certs

import (
	"net/http"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodelet/nodelet/test/waittest"
)

// TestFailedHeartbeatsCloseIdle checks that what replaces the connection for heartbeats closes the idle connections
// of all other requests too: they may be dead as well.
func TestFailedHeartbeatsCloseIdle(t *testing.T) {
	c := newCluster(t)
	cfg := c.config()
	c.kubeconfig("kubelet.conf", c.embedded(nodeUser, time.Now().Add(-time.Hour), time.Now().Add(time.Hour)), c.caPEM())
	var mu sync.Mutex
	var last string
	c.api.Intercept(func(r *http.Request) *apierrors.StatusError {
		mu.Lock()
		defer mu.Unlock()
		last = r.RemoteAddr
		return c.intercept(r)
	})
	id, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, renew := id.Heartbeats()
	connection := func() string {
		t.Helper()
		if err := get(t, id.Config()); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		return last
	}
	first := connection()
	if again := connection(); again != first {
		t.Errorf("second request: got connection %s, want %s", again, first)
	}
	waittest.Until(t, "requests use another connection", func() bool { // a request may still be ending
		if err := renew(); err != nil {
			t.Fatal(err)
		}
		return connection() != first
	})
}
