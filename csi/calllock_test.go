package csi_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// TestCallIsGivenUp ends a pod while its driver works for it. The step ends at once, and with it the pod, if it has
// nothing of the volume in its directory. But the driver goes on: until it answers, it gets no other call for the
// volume, and the volume stays in use, so that it is not detached.
func TestCallIsGivenUp(t *testing.T) {
	t.Parallel()
	for method, waits := range map[string]bool{
		"NodeStageVolume":   false,
		"NodePublishVolume": true,
		"NodeExpandVolume":  true,
	} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			v, other := w.volume("a"), w.volume("other")
			w.publish("pod-2", other)
			calls := w.calls(method)
			w.fail(method, "busy", 0)
			ctx, cancel := context.WithCancel(t.Context())
			step := make(chan error, 1)
			go func() {
				_, err := w.csi.Publish(ctx, "pod-1", v)
				if err == nil {
					err = w.csi.Expand(ctx, "pod-1", v, 2<<20, nil)
				}
				step <- err
			}()
			w.Until("the call is under way", func() bool { return w.calls(method) > calls })
			cancel()
			if err := <-step; !errors.Is(err, context.Canceled) {
				t.Errorf("the step: got %v, want that it was cancelled", err)
			}
			end := make(chan error, 1)
			go func() { end <- w.csi.Unpublish(t.Context(), "pod-1", v.Name) }()
			if !waits {
				if err := <-end; err != nil {
					t.Error(err)
				}
			}
			w.unpublish("pod-2", other)
			w.Until("only one volume is in use", func() bool { return len(w.csi.InUse()) == 1 })
			if waits && len(end) > 0 {
				t.Error("the end of the pod: got it beside the call, want it after that")
			}
			w.heal(method)
			if waits {
				if err := <-end; err != nil {
					t.Error(err)
				}
			}
			w.nothingLeft()
			if n := w.driver.Refused(); n > 0 {
				t.Errorf("got %d calls beside another one, want none", n)
			}
		})
	}
}

// TestGivenUpCallHasNoAnswer checks that a call that nobody waits for, and that its driver never answers, keeps the
// volume from being unstaged no longer than its timeout.
func TestGivenUpCallHasNoAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.Kill()
	w.timeout = 2 * time.Second
	w.begin()
	v := w.volume("a")
	w.fail("NodeStageVolume", "busy", 0)
	ctx, cancel := context.WithCancel(t.Context())
	step := make(chan struct{})
	go func() {
		defer close(step)
		_, _ = w.csi.Publish(ctx, "pod-1", v) // cut off below
	}()
	w.Until("the call is under way", func() bool { return w.calls("NodeStageVolume") == 1 })
	cancel()
	<-step
	w.unpublish("pod-1", v)
	w.Until("the driver is asked to unstage the volume", func() bool { return w.driver.Refused() > 0 })
	if got := w.csi.InUse(); len(got) != 1 {
		t.Errorf("in use: got %q, want the volume", got)
	}
	w.heal("NodeStageVolume")
	w.nothingLeft()
}

// TestOneCallAtATime lets pods begin to use a volume, end their use and expand it at the same time. The driver never
// has two calls for it.
func TestOneCallAtATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	w.publish("pod-0", v)
	w.publish("pod-1", v)
	w.fail("NodePublishVolume", "busy", 0)
	var all sync.WaitGroup
	do := func(step func() error) {
		all.Go(func() {
			if err := step(); err != nil {
				t.Error(err)
			}
		})
	}
	for _, pod := range []types.UID{"pod-2", "pod-3"} {
		do(func() error { _, err := w.csi.Publish(t.Context(), pod, v); return err })
	}
	w.Until("a call is under way", func() bool { return w.calls("NodePublishVolume") == 3 })
	if w.publish("pod-0", v); w.calls("NodePublishVolume") != 3 {
		t.Errorf("a pod that has the volume: got the calls %q, want none for it and no wait", w.driver.Calls())
	}
	do(func() error { return w.csi.Expand(t.Context(), "pod-0", v, 2<<20, nil) })
	do(func() error { return w.csi.Unpublish(t.Context(), "pod-1", v.Name) })
	w.heal("NodePublishVolume")
	all.Wait()
	if n, calls := w.driver.Refused(), w.driver.Calls(); n > 0 || !slices.Contains(calls, "NodeExpandVolume vol-a") {
		t.Errorf("got %d calls beside another one, want none: %q", n, calls)
	}
	for _, pod := range []types.UID{"pod-0", "pod-2", "pod-3"} {
		w.unpublish(pod, v)
	}
	w.nothingLeft()
}
