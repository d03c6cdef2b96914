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
)

func isLease(r *http.Request) bool { return strings.Contains(r.URL.Path, "/leases") }

func TestLeaseIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &fakeAPI{}, nil)
		b.SetRuntime(readyRuntime)
		settle(time.Second)
		first := b.api.getLease()
		if *first.Spec.HolderIdentity != testNode || *first.Spec.LeaseDurationSeconds != 40 {
			t.Errorf("%+v", first.Spec)
		}
		settle(11 * time.Second)
		if second := b.api.getLease(); second.Spec.RenewTime.Sub(first.Spec.RenewTime.Time) < 9*time.Second {
			t.Errorf("renewed at %v, then at %v", first.Spec.RenewTime, second.Spec.RenewTime)
		}
	})
}

// TestLeaseSurvivesOthers: a lease which somebody changed or deleted is renewed all the same, in the same attempt.
func TestLeaseSurvivesOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &fakeAPI{}, nil)
		b.SetRuntime(readyRuntime)
		settle(time.Second)
		b.api.mu.Lock()
		b.api.lease.ResourceVersion = "99999"
		b.api.mu.Unlock()
		settle(11 * time.Second)
		if age := time.Since(b.api.getLease().Spec.RenewTime.Time); age > 3*time.Second {
			t.Errorf("after a conflict the lease is %v old", age)
		}
		b.api.mu.Lock()
		b.api.lease = nil
		b.api.mu.Unlock()
		settle(11 * time.Second)
		if l := b.api.getLease(); l == nil || len(l.OwnerReferences) != 1 {
			t.Errorf("a deleted lease is not made again: %v", l)
		}
	})
}

// TestHalfDeadConnection: requests hang for ever, and nobody says so. A new connection must come well before the
// lease runs out (40 s), and Health must tell when it does not help.
func TestHalfDeadConnection(t *testing.T) {
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
		b.SetRuntime(readyRuntime)
		settle(time.Second)
		before := b.beat.api()
		dead.Store(true)
		settle(9*time.Second + 12*time.Second) // the next renewal, and two attempts of 5 s
		if b.beat.api() == before {
			t.Error("there is no new connection after two attempts")
		}
		if b.Health() != nil {
			t.Errorf("the lease has not run out yet: %v", b.Health())
		}
		settle(25 * time.Second)
		if err := b.Health(); err == nil || !strings.Contains(err.Error(), "the node lease was not renewed for") {
			t.Errorf("health: %v", err)
		}
		dead.Store(false)
		settle(10 * time.Second)
		if b.Health() != nil {
			t.Errorf("health: %v", b.Health())
		}
	})
}

// TestAnswersDoNotRenewTheConnection: a server that answers with errors is reached; only a refused certificate needs
// a new connection.
func TestAnswersDoNotRenewTheConnection(t *testing.T) {
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
				b.SetRuntime(readyRuntime)
				settle(time.Second)
				before := b.beat.api()
				broken.Store(true)
				settle(20 * time.Second)
				if renewed := b.beat.api() != before; renewed != c.want {
					t.Errorf("new connection: %v; want %v", renewed, c.want)
				}
			})
		})
	}
}
