package cri_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// listing returns a runtime with two sandboxes that have a container each, and a client that asks for streams.
func listing(t *testing.T, streams bool) (*fake.Runtime, *cri.Client) {
	t.Helper()
	rt := fake.New()
	rt.Streams = streams
	rt.AddImage(fake.RemoteImage{Name: "busybox:1"})
	rt.AddImage(fake.RemoteImage{Name: "pause:1"})
	rt.Start()
	t.Cleanup(func() { rt.Crash(true) })
	c, err := cri.Dial("unix:///run/fake.sock", cri.Options{Log: discard, Connect: rt.Connect, StreamLists: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	for _, pod := range []string{"a", "b"} {
		startContainer(t, c, runSandbox(t, c, pod, 0), pod, "app", 0)
	}
	return rt, c
}

// lists returns how long the lists of a client are.
func lists(t *testing.T, c *cri.Client) []int {
	t.Helper()
	sandboxes, containers, err := c.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	images, err := c.ListImages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stats, err := c.ListContainerStats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return []int{len(sandboxes), len(containers), len(images), len(stats)}
}

// TestListsAsStreams checks that lists are complete as streams, and that a runtime without streams is asked for one
// only until its first answer.
func TestListsAsStreams(t *testing.T) {
	for _, streams := range []bool{true, false} {
		rt, c := listing(t, streams)
		want := []int{2, 2, 2, 2}
		for range 3 {
			if got := lists(t, c); !slices.Equal(got, want) {
				t.Errorf("streams %v: got %v sandboxes, containers, images, stats, want %v", streams, got, want)
			}
		}
		tried, whole := 0, 0
		for verb, n := range rt.Verbs() {
			switch {
			case strings.HasPrefix(verb, "Stream"):
				tried += n
			case strings.HasPrefix(verb, "List"):
				whole += n
			}
		}
		if streams && (tried != 12 || whole != 0) {
			t.Errorf("got %d streams and %d lists, want 12 and 0", tried, whole)
		}
		if !streams && (tried > 2 || whole != 12) { // sandboxes and containers are listed side by side
			t.Errorf("without streams: got %d streams and %d lists, want 1 or 2 and 12", tried, whole)
		}
	}
}

// TestStreamsWithoutService checks that lists are streams again when containerd gets its CRI plugin back.
func TestStreamsWithoutService(t *testing.T) {
	rt, c := listing(t, true)
	broken := rt.Inject(&fake.Fault{Err: noService})
	if _, _, err := c.List(t.Context()); err == nil {
		t.Error("without a CRI service: got a list, want an error")
	}
	rt.Release(broken)
	lists(t, c)
	if got := rt.Verbs(); got["StreamImages"] != 1 || got["ListImages"] != 0 {
		t.Errorf("got %v, want a stream of images and no list", got)
	}
}

// TestStreamsAfterRestart checks that lists are streams after a restart of the runtime that brings them.
func TestStreamsAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := listing(t, false)
		lists(t, c)
		rt.Crash(false)
		rt.Streams = true
		check(t, rt.Restart())
		time.Sleep(10 * time.Second)
		if _, err := c.Version(t.Context()); err != nil {
			t.Fatal(err)
		}
		rt.ResetCalls()
		lists(t, c)
		if got := rt.Verbs(); got["StreamImages"] != 1 || got["ListImages"] != 0 {
			t.Errorf("got %v, want a stream of images and no list", got)
		}
	})
}

// TestBrokenStream checks that an incomplete list is an error.
func TestBrokenStream(t *testing.T) {
	rt, c := listing(t, true)
	rt.BreakStreams = true
	if sandboxes, containers, err := c.List(t.Context()); err == nil {
		t.Errorf("got %d sandboxes and %d containers of a broken stream, want an error", len(sandboxes), len(containers))
	}
}
