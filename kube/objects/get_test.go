package objects

import (
	"net/http"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestReadsShareOneCopy checks that containers which are created at once hold one copy of an object that all of them
// have read, as long as it is the same object in the same version.
func TestReadsShareOneCopy(t *testing.T) {
	run(t, func(b *bench) {
		get := func() any {
			o, err := b.o.ConfigMap(b.Context(), "ns", "a")
			if err != nil {
				b.Error(err)
			}
			return o
		}
		b.o.Use("p1", []Ref{ref("a", false)})
		b.server.Put(configMap("a", "1"))
		first := get()
		if get() != first {
			b.Error("another read of one version: got another copy")
		}
		b.server.Put(configMap("a", "2"))
		second := get()
		if second == first {
			b.Error("the next version: got the one before")
		}
		b.server.Delete("configmaps", "ns", "a")
		b.wantMissing("a")
	})
}

// TestNewWatchIsAwaited checks that a pod that shows an object gets it as it is now, not as it was once read for an
// environment; while the API server does not answer, it gets that.
func TestNewWatchIsAwaited(t *testing.T) {
	run(t, func(b *bench) {
		for _, gone := range []bool{false, true} {
			b.server.Put(configMap("a", "1"))
			b.o.Use("p1", []Ref{ref("a", false)})
			b.wantValue("a", "1")
			if gone {
				b.o.Use("p1", nil)
			}
			b.server.Put(configMap("a", "2"))
			b.o.Use("p2", []Ref{ref("a", true)})
			b.wantValue("a", "2")
			b.o.Use("p2", []Ref{ref("a", false)})
			time.Sleep(linger + time.Second)
			for _, away := range []func(*http.Request) *apierrors.StatusError{down, b.silent} {
				b.server.Intercept(away)
				b.o.Use("p2", []Ref{ref("a", true)})
				b.wantValue("a", "2")
				b.o.Use("p2", []Ref{ref("a", false)})
				time.Sleep(linger + time.Second)
			}
			b.server.Intercept(nil)
			b.o.Use("p1", nil)
			b.o.Use("p2", nil)
			time.Sleep(linger + time.Second)
		}
	})
}
