package devices_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/plugins/devices/fake"
)

// sevenDevices are enough for three pods.
func sevenDevices(c *fake.Config) { c.Devices = []string{"d1", "d2", "d3", "d4", "d5", "d6", "d7"} }

// checkCalls checks what the plugin was asked, in order.
func checkCalls(t *testing.T, p *fake.Plugin, want ...string) {
	t.Helper()
	if got := p.Calls(); !slices.Equal(got, want) {
		t.Errorf("the plugin was asked %q, want %q", got, want)
	}
}

// whileOneWaits returns a world in which the pod one, with two containers, waits for the plugin until release is
// called.
func whileOneWaits(t *testing.T) (w *world, p *fake.Plugin, one <-chan error, release func()) {
	t.Helper()
	w = newWorld(t)
	p = w.plugin(sevenDevices)
	waiting, release := p.Hold()
	t.Cleanup(release)
	one = w.reserve(t.Context(), pod("one", "a 1", "b 2"))
	<-waiting
	return w, p, one, release
}

// TestPodByPod checks that a plugin is asked for all containers of a pod before it is asked for another pod. Plugins
// that share GPUs rely on it, because Allocate does not say for which pod it is.
func TestPodByPod(t *testing.T) {
	t.Parallel()
	w, p, first, release := whileOneWaits(t)
	second := w.reserve(t.Context(), pod("two", "a 1", "b 2"))
	release()
	if err := errors.Join(<-first, <-second); err != nil {
		t.Error(err)
	}
	checkCalls(t, p, "Allocate d1", "Allocate d2,d3", "Allocate d4", "Allocate d5,d6")
}

// TestPodsInOrder checks that a plugin is asked for pods in the order of their reservations, whichever goroutine is the
// first.
func TestPodsInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.plugin(sevenDevices)
	all := []func(context.Context) error{
		w.setAside(pod("one", "app 3")), w.setAside(pod("two", "app 2")), w.setAside(pod("three", "app 1")),
	}
	answers := make(chan error)
	for _, allocate := range slices.Backward(all) {
		go func() { answers <- allocate(t.Context()) }()
	}
	if err := errors.Join(<-answers, <-answers, <-answers); err != nil {
		t.Error(err)
	}
	checkCalls(t, p, "Allocate d1,d2,d3", "Allocate d4,d5", "Allocate d6")
}

// setAside reserves the devices of a pod.
func (w *world) setAside(p *corev1.Pod) (allocate func(context.Context) error) {
	w.T.Helper()
	allocate, err := w.devices.Reserve(p, nil)
	if err != nil || allocate == nil {
		w.T.Fatalf("pod %s: got nothing set aside, %v, want devices", p.UID, err)
	}
	return allocate
}

// TestTurnEnds checks that the next pod gets its devices whatever happens to the one before it, also if the plugin is
// never asked for that.
func TestTurnEnds(t *testing.T) {
	t.Parallel()
	one := pod("one", "app 1")
	for name, end := range map[string]func(w *world, p *fake.Plugin, allocate func(context.Context) error) error{
		"it has left before its call": func(w *world, _ *fake.Plugin, allocate func(context.Context) error) error {
			ctx, cancel := context.WithCancel(w.T.Context())
			cancel()
			return allocate(ctx)
		},
		"the plugin refuses": func(w *world, p *fake.Plugin, allocate func(context.Context) error) error {
			p.Fail(errors.New("the device is on fire"))
			defer p.Fail(nil)
			return allocate(w.T.Context())
		},
		"it was released before its call": func(w *world, _ *fake.Plugin, allocate func(context.Context) error) error {
			w.devices.Release(one.UID)
			return allocate(w.T.Context())
		},
		"it was released, and no call comes": func(w *world, _ *fake.Plugin, _ func(context.Context) error) error {
			w.devices.Release(one.UID)
			return errors.New("not called")
		},
		"it was reserved again, and no call comes": func(w *world, _ *fake.Plugin, _ func(context.Context) error) error {
			w.setAside(one)
			return errors.New("not called")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			p := w.plugin(sevenDevices)
			allocate := w.setAside(one)
			two := w.setAside(pod("two", "app 2"))
			if err := end(w, p, allocate); err == nil {
				t.Error("got devices, want none")
			}
			if err := two(t.Context()); err != nil {
				t.Error(err)
			}
			w.devices.Release(one.UID)
			w.admit(pod("three", "app 5"))
		})
	}
}

// TestTurnIsGivenUp checks that a pod which leaves while it waits for its turn does not wait for the plugin, that no
// pod after it comes before the one that has the turn, and that the plugin is not asked for it.
func TestTurnIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(w *world, cancel context.CancelFunc){
		"its caller has left": func(_ *world, cancel context.CancelFunc) { cancel() },
		"it is released": func(w *world, cancel context.CancelFunc) {
			w.devices.Release("two")
			cancel()
		},
		"it is reserved again": func(w *world, cancel context.CancelFunc) {
			w.setAside(pod("two", "app 1"))
			cancel()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, p, first, release := whileOneWaits(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			second, third := w.reserve(ctx, pod("two", "app 1")), w.reserve(t.Context(), pod("three", "app 3"))
			leave(w, cancel)
			if err := <-second; err == nil {
				t.Error("got devices, want none")
			}
			release()
			if err := errors.Join(<-first, <-third); err != nil {
				t.Error(err)
			}
			checkCalls(t, p, "Allocate d1", "Allocate d2,d3", "Allocate d4,d5,d6")
		})
	}
}
