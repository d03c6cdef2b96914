package main

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/cri/fake"
	"github.com/nodelet/nodelet/kube/node"
)

// TestRuntimeComesBack: a runtime that was away keeps its name, by which container IDs are known, and is told the node's pod
// addresses anew: it may be another process.
func TestRuntimeComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		told := 0
		client, w, rt := newWatch(t, func(verb string, _ time.Duration, err error) {
			mu.Lock()
			defer mu.Unlock()
			if verb == "UpdateRuntimeConfig" && err == nil {
				told++
			}
		})
		defer client.Close()
		defer rt.Close()
		check := func(when, name string, times int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if w.name() != name || told != times {
				t.Errorf("%s: it is called %q and was told %d times, want %q and %d", when, w.name(), told, name, times)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { w.run(ctx); close(done) }()
		defer func() { cancel(); <-done }()
		w.podCIDR("10.1.0.0/24")
		time.Sleep(time.Minute)
		check("before it is there", "", 0)
		select {
		case <-w.answered:
			t.Error("nobody has answered")
		default:
		}
		rt.Start()
		time.Sleep(10 * time.Second)
		<-w.answered
		check("when it is there", "containerd", 1)
		w.podCIDR("10.1.0.0/24")
		check("the same addresses", "containerd", 1)
		w.podCIDR("10.2.0.0/24")
		check("other addresses", "containerd", 2)
		rt.Crash(false)
		time.Sleep(time.Minute)
		check("while it is away", "containerd", 2)
		if err := rt.Restart(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		check("when it is back", "containerd", 3)
	})
}

func newWatch(t *testing.T, done func(string, time.Duration, error)) (*cri.Client, *runtimeWatch, *fake.Runtime) {
	rt := fake.New()
	client, err := cri.Dial("unix:///run/fake.sock", cri.Options{Connect: rt.Connect, Done: done})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	n, err := node.New(node.Config{Name: "node", RootDir: t.TempDir(), Log: log}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return client, newRuntimeWatch(client, n, log), rt
}
