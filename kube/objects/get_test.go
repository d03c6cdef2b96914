package objects

import (
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// TestKnownWhileForbidden checks that a container can start again, and its image be pulled, with what is known while
// an API server that has just started does not know which pods the node has. What was never read is forbidden.
func TestKnownWhileForbidden(t *testing.T) {
	run(t, func(b *bench) {
		b.learn()
		meta := metav1.ObjectMeta{Namespace: "ns", Name: "sa", UID: "sa-uid"}
		b.server.Put(&corev1.ServiceAccount{ObjectMeta: meta})
		meta.Name = "pull"
		b.server.Put(&corev1.Secret{ObjectMeta: meta})
		pod := testPod()
		pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
		b.o.UsePod(pod, false)
		pullWith := func(when string) {
			b.Helper()
			if got, missing, err := b.o.PullSecrets(b.Context(), pod); len(got) != 1 {
				b.Errorf("%s: got pull secrets without %q, %v, want it", when, missing, err)
			}
			if got, err := b.o.ServiceAccount(b.Context(), pod); err != nil || got.UID != "sa-uid" {
				b.Errorf("%s: got service account %v, %v, want sa-uid", when, got, err)
			}
		}
		pullWith("at first")
		b.server.Put(configMap("other", "1"))
		b.server.Intercept(func(*http.Request) *apierrors.StatusError {
			return apierrors.NewForbidden(corev1.Resource("any"), "any", nil)
		})
		pullWith("forbidden")
		b.wantValue("env", "1")
		b.wantServices("ns", "ns/a default/kubernetes")
		b.o.Use("q", []Ref{ref("other", false)})
		if got, err := b.o.ConfigMap(b.Context(), "ns", "other"); !apierrors.IsForbidden(err) {
			b.Errorf("what was not read before: got %v, %v, want it forbidden", got, err)
		}
		b.server.Intercept(nil)
		b.server.Put(configMap("env", "2"))
		b.wantValue("env", "2")
		b.wantValue("other", "1")
		b.o.Drop(pod.UID)
	})
}

// TestForbiddenWhileWatchBegins checks that what is known counts if a pod begins to watch it during a read that is
// forbidden.
func TestForbiddenWhileWatchBegins(t *testing.T) {
	run(t, func(b *bench) {
		b.learn()
		var watch sync.Once
		b.server.Intercept(func(*http.Request) *apierrors.StatusError {
			watch.Do(func() { b.o.Use("q", []Ref{ref("env", true)}) })
			return apierrors.NewForbidden(corev1.Resource("any"), "any", nil)
		})
		b.wantValue("env", "1")
	})
}
