package node

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/internal/backoff"
)

func isLease(r *http.Request) bool { return strings.Contains(r.URL.Path, "/leases") }

func TestLeaseIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &fakeAPI{}, nil)
		b.setRuntime(readyRuntime)
		settle(time.Second)
		first := b.api.getLease()
		if *first.Spec.HolderIdentity != testNode || *first.Spec.LeaseDurationSeconds != 40 {
			t.Errorf("got %+v", first.Spec)
		}
		settle(11 * time.Second)
		if second := b.api.getLease(); second.Spec.RenewTime.Sub(first.Spec.RenewTime.Time) < 9*time.Second {
			t.Errorf("got renewals at %v and %v, want 10 s between them", first.Spec.RenewTime, second.Spec.RenewTime)
		}
	})
}

// TestLeaseChangedByOthers checks that a lease that another client has changed or deleted is renewed in the same
// attempt.
func TestLeaseChangedByOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &fakeAPI{}, nil)
		b.setRuntime(readyRuntime)
		settle(time.Second)
		b.api.mu.Lock()
		b.api.lease.ResourceVersion = "99999"
		b.api.mu.Unlock()
		settle(11 * time.Second)
		if age := time.Since(b.api.getLease().Spec.RenewTime.Time); age > 3*time.Second {
			t.Errorf("after a conflict: got a renewal %v ago, want at most 3 s", age)
		}
		b.api.mu.Lock()
		b.api.lease = nil
		b.api.mu.Unlock()
		settle(11 * time.Second)
		if l := b.api.getLease(); l == nil || len(l.OwnerReferences) != 1 {
			t.Errorf("after a deletion: got %v, want a new lease with an owner", l)
		}
	})
}

// TestClockSetBack checks that the status is sent once, without a change, when the time of the lease goes back: the
// control plane takes no such renewal as a sign of life.
func TestClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &fakeAPI{}, nil)
		b.setRuntime(readyRuntime)
		settle(time.Minute)
		sent := func() int {
			b.api.mu.Lock()
			defer b.api.mu.Unlock()
			return len(b.api.patches)
		}
		before := sent()
		b.api.mu.Lock()
		b.api.lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now().Add(time.Hour)}
		b.api.lease.ResourceVersion = "99999"
		b.api.mu.Unlock()
		settle(time.Minute)
		if got := sent() - before; got != 1 {
			t.Errorf("within a minute after the clock was set back: got %d statuses, want 1", got)
		}
	})
}

// TestHalfOpenConnection checks that requests without an answer lead to a new connection well before the lease expires
// (40 s), and that the lease is renewed soon after there are answers again.
func TestHalfOpenConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		var dead atomic.Bool
		api.before = func(r *http.Request) error {
			if dead.Load() && isLease(r) {
				<-r.Context().Done()
				return r.Context().Err()
			}
			return nil
		}
		b := start(t, api, nil)
		b.setRuntime(readyRuntime)
		settle(time.Second)
		before := api.renewed.Load()
		dead.Store(true)
		settle(9*time.Second + 22*time.Second) // the next renewal, and two attempts of 10 s
		if api.renewed.Load() == before {
			t.Error("after two attempts: got the old connection, want a new one")
		}
		settle(15 * time.Second)
		last := api.getLease().Spec.RenewTime.Time
		if got := time.Since(last); got < 40*time.Second {
			t.Errorf("without answers: got a lease that was renewed %s ago, want it expired", got)
		}
		dead.Store(false)
		settle(15 * time.Second) // the rest of an attempt
		if !api.getLease().Spec.RenewTime.After(last) {
			t.Error("with answers again: got no renewal of the lease, want one")
		}
	})
}

// TestSlowServer checks that the lease is created and does not expire (40 s) while the server takes 6 s for each
// request, and that the connection stays.
func TestSlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		api.before = func(r *http.Request) error {
			if isLease(r) && !backoff.Sleep(r.Context(), 6*time.Second) {
				return r.Context().Err()
			}
			return nil
		}
		b := start(t, api, nil)
		b.setRuntime(readyRuntime)
		settle(time.Minute)
		if api.getLease() == nil {
			t.Fatal("after a minute: got no lease, want one")
		}
		before := api.renewed.Load()
		for range 600 {
			settle(time.Second)
			if age := time.Since(api.getLease().Spec.RenewTime.Time); age >= 40*time.Second {
				t.Fatalf("got a lease that was renewed %s ago, want less than 40 s", age)
			}
		}
		if got := api.renewed.Load() - before; got != 0 {
			t.Errorf("got %d new connections, want none", got)
		}
	})
}

// TestAnswersDoNotReplaceTheConnection checks that errors from the server do not replace the connection, except that
// the certificate is not accepted.
func TestAnswersDoNotReplaceTheConnection(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"internal error": {apierrors.NewInternalError(errors.New("etcd")), false},
		"unauthorized":   {apierrors.NewUnauthorized("expired"), true},
		"refused":        {errors.New("connection refused"), true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &fakeAPI{}
				var broken atomic.Bool
				api.before = func(r *http.Request) error {
					if broken.Load() && isLease(r) {
						return c.err
					}
					return nil
				}
				b := start(t, api, nil)
				b.setRuntime(readyRuntime)
				settle(time.Second)
				before := api.renewed.Load()
				broken.Store(true)
				settle(20 * time.Second)
				if got := api.renewed.Load() != before; got != c.want {
					t.Errorf("new connection: got %v, want %v", got, c.want)
				}
			})
		})
	}
}
