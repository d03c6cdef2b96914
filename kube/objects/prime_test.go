package objects

import (
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// running returns a pod with a runtime class, "" for none.
func running(uid types.UID, class string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", UID: uid}}
	if class != "" {
		pod.Spec.RuntimeClassName = &class
	}
	return pod
}

// TestPrime checks that what running pods would need again is read once for all of them, and is there when the API
// server goes away.
func TestPrime(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Put(configMap("env", "1"))
		b.server.Put(configMap("shown", "1"))
		b.server.Put(service("ns", "a", "10.0.0.2"))
		b.server.Put(service("default", "kubernetes", "10.0.0.1"))
		b.server.Put(&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "kata"}, Handler: "kata-qemu"})
		services := Ref{Kind: Services, Namespace: "ns"}
		b.o.Use("p1", []Ref{ref("env", false), ref("shown", true), services})
		b.o.Use("p2", []Ref{ref("env", false), services})
		b.wantRequests("list configmaps ns/", "watch configmaps ns/")
		for range 2 {
			b.o.Prime(running("p1", "kata"))
			b.o.Prime(running("p2", "kata"))
		}
		b.wantRequests("list services ns/", "get services default/kubernetes", "get configmaps ns/env",
			"get runtimeclasses /kata")
		b.server.Intercept(down)
		b.wantServices("ns", "ns/a default/kubernetes")
		b.wantValue("env", "1")
		if got, err := b.o.RuntimeHandler(b.Context(), "kata"); got != "kata-qemu" {
			b.Errorf("handler of the class kata: got %q, %v, want kata-qemu", got, err)
		}
	})
}

// TestPrimeWithoutServer checks that an API server that is away costs an attempt, and has no other effect.
func TestPrimeWithoutServer(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Intercept(down)
		b.o.Use("p1", []Ref{ref("env", false)})
		b.o.Prime(running("p1", ""))
		synctest.Wait()
		b.server.Intercept(nil)
		b.server.Put(configMap("env", "1"))
		b.wantValue("env", "1")
	})
}
