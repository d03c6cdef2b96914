package objects

import (
	"testing"
	"testing/synctest"
)

// TestPrime checks that what running pods would need again is read once for all of them, and is there when the API
// server goes away.
func TestPrime(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Put(configMap("env", "1"))
		b.server.Put(configMap("shown", "1"))
		b.server.Put(service("ns", "a", "10.0.0.2"))
		b.server.Put(service("default", "kubernetes", "10.0.0.1"))
		services := Ref{Kind: Services, Namespace: "ns"}
		b.o.Use("p1", []Ref{ref("env", false), ref("shown", true), services})
		b.o.Use("p2", []Ref{ref("env", false), services})
		b.wantRequests("list configmaps ns/", "watch configmaps ns/")
		for range 2 {
			b.o.Prime("p1")
			b.o.Prime("p2")
		}
		b.wantRequests("list services ns/", "get services default/kubernetes", "get configmaps ns/env")
		b.server.Intercept(down)
		b.wantServices("ns", "ns/a default/kubernetes")
		b.wantValue("env", "1")
	})
}

// TestPrimeWithoutServer checks that an API server that is away costs an attempt, and has no other effect.
func TestPrimeWithoutServer(t *testing.T) {
	run(t, func(b *bench) {
		b.server.Intercept(down)
		b.o.Use("p1", []Ref{ref("env", false)})
		b.o.Prime("p1")
		synctest.Wait()
		b.server.Intercept(nil)
		b.server.Put(configMap("env", "1"))
		b.wantValue("env", "1")
	})
}
