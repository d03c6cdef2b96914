package devices_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/plugins/devices/fake"
)

// reserve sets devices aside, and begins to ask the plugin for them; the answer comes by the channel.
func (w *world) reserve(ctx context.Context, p *corev1.Pod) <-chan error {
	w.T.Helper()
	allocate := w.setAside(p)
	answer := make(chan error, 1)
	go func() { answer <- allocate(ctx) }()
	return answer
}

// beginPreStart begins to create the container of a pod; the answer comes by the channel.
func (w *world) beginPreStart(ctx context.Context, p *corev1.Pod) <-chan error {
	answer := make(chan error, 1)
	go func() {
		_, err := w.devices.Container(ctx, p, &p.Spec.Containers[0])
		answer <- err
	}()
	return answer
}

// slowCalls begin the calls that have a plugin work.
var slowCalls = map[string]func(*world, context.Context, *corev1.Pod) <-chan error{
	"Allocate":          (*world).reserve,
	"PreStartContainer": (*world).beginPreStart,
}

// TestSlowPlugin checks that while a plugin does not answer, devices are set aside for those who come, in order; pods
// with devices of another plugin get theirs; and what no plugin has agreed to is not kept.
func TestSlowPlugin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slow := w.plugin(nil)
	quick := w.plugin(func(c *fake.Config) { c.Resource = "nodelet.test/other" })
	waiting, release := slow.Hold()
	defer release()
	one, two := pod("one", "app 2"), pod("two", "init 1", "app 1")
	other := pod("other", "app 1")
	other.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
		"nodelet.test/other": one.Spec.Containers[0].Resources.Limits["cpu"],
	}

	first := w.reserve(t.Context(), one)
	if verb := <-waiting; verb != "Allocate" {
		t.Errorf("got the call %s, want Allocate", verb)
	}
	second := w.reserve(t.Context(), two)
	w.refused(pod("three", "app 2"), "Requested: 2, Available: 1")
	w.admit(other)
	if want := []string{"Allocate d1"}; !slices.Equal(quick.Calls(), want) {
		t.Errorf("the other plugin was asked %q, want %q", quick.Calls(), want)
	}
	if text, err := os.ReadFile(w.checkpoint()); err != nil || strings.Contains(string(text), `"one"`) ||
		!strings.Contains(string(text), `"other"`) {
		t.Errorf("checkpoint: got %s, %v, want the other pod alone", text, err)
	}

	release()
	if err := errors.Join(<-first, <-second); err != nil {
		t.Fatal(err)
	}
	w.has(one, "app", "d1,d2")
	w.has(two, "init", "d3")
	w.has(two, "app", "d3")
	w.admit(pod("three", "app 1"))
	w.refused(pod("four", "app 1"), "Requested: 1, Available: 0")
}

// TestReservationEnds checks that what is set aside for a pod is free again when the plugin refuses it, and when the
// pod goes before the plugin has answered.
func TestReservationEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(w *world, p *fake.Plugin, stop, release func())
		want string
	}{
		"the plugin refuses": {func(_ *world, p *fake.Plugin, _, release func()) {
			p.Fail(errors.New("the device is on fire"))
			release()
		}, "on fire"},
		"the caller has left": {func(_ *world, _ *fake.Plugin, stop, release func()) {
			stop()
			release()
		}, "canceled"},
		"the pod goes": {func(w *world, _ *fake.Plugin, _, release func()) {
			w.devices.Release("one")
			release()
		}, "were released"},
		"the pod is re-created": {func(w *world, _ *fake.Plugin, _, release func()) {
			w.devices.Release("one")
			second := w.reserve(w.T.Context(), pod("one", "app 1"))
			release()
			if err := <-second; err != nil {
				w.T.Error(err)
			}
			w.has(pod("one", "app 1"), "app", "d1")
			w.devices.Release("one")
		}, "were released"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			p := w.plugin(nil)
			waiting, release := p.Hold()
			defer release()
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			answer := w.reserve(ctx, pod("one", "app 3"))
			<-waiting
			w.refused(pod("two", "app 2"), "Requested: 2, Available: 1")
			c.end(w, p, stop, release)
			if err := <-answer; err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			p.Fail(nil)
			release()
			w.admit(pod("two", "app 4"))
			w.has(pod("two", "app 4"), "app", "d1,d2,d3,d4")
		})
	}
}

// TestCallIsGivenUp ends pods while a plugin works for them. The plugin goes on: until it answers, it gets no other
// call, and the pod keeps its devices.
func TestCallIsGivenUp(t *testing.T) {
	t.Parallel()
	for verb, begin := range slowCalls {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			p := w.plugin(func(c *fake.Config) { c.PreStart = true })
			w.plugin(func(c *fake.Config) { c.Resource = "nodelet.test/other" })
			one, other := pod("one", "app 3"), pod("other", "app 1")
			other.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
				"nodelet.test/other": one.Spec.Containers[0].Resources.Limits["cpu"],
			}
			if verb != "Allocate" {
				w.admit(one)
			}
			waiting, release := p.Hold()
			defer release()
			ctx, cancel := context.WithCancel(t.Context())
			step := begin(w, ctx, one)
			<-waiting
			cancel()
			w.admit(other)
			w.refused(pod("two", "app 2"), "Requested: 2, Available: 1")
			if len(step) > 0 {
				t.Error("the step has ended beside the call, want it after that")
			}
			release()
			if err := <-step; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want that it was cancelled", err)
			}
		})
	}
}

// TestCallOutlivesConnection checks that a call in flight ends with its answer when the plugin registers again or ends
// ListAndWatch: the plugin goes on with it. When the agent ends, the call is given up.
func TestCallOutlivesConnection(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end  func(w *world, p *fake.Plugin)
		want string
	}{
		"the plugin registers again": {func(w *world, p *fake.Plugin) {
			w.register(p)
			w.register(p)
		}, "<nil>"},
		"the plugin stops listing": {func(w *world, p *fake.Plugin) {
			p.StopListing()
			w.untilCapacity(resourceName, 4, 0)
		}, "<nil>"},
		"the agent ends": {func(w *world, _ *fake.Plugin) { w.Kill() }, "rpc error"},
		"the agent ends after the plugin": {func(w *world, p *fake.Plugin) {
			p.StopListing()
			w.untilCapacity(resourceName, 4, 0)
			w.Kill()
		}, "rpc error"},
	} {
		for verb, begin := range slowCalls {
			t.Run(name+" during "+verb, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				p := w.plugin(func(c *fake.Config) { c.PreStart = true })
				one := pod("one", "app 3")
				if verb != "Allocate" {
					w.admit(one)
				}
				waiting, release := p.Hold()
				defer release()
				answer := begin(w, t.Context(), one)
				<-waiting
				test.end(w, p)
				if test.want == "<nil>" {
					release()
				}
				if err := <-answer; !strings.Contains(fmt.Sprint(err), test.want) {
					t.Errorf("got %v, want %q", err, test.want)
				}
			})
		}
	}
}

// TestSlowPreference checks that a plugin that does not answer which devices it prefers blocks no other pod; the pod
// gets the preferred devices although other pods have come meanwhile.
func TestSlowPreference(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.plugin(func(c *fake.Config) { c.Prefer = true })
	waiting, release := p.Hold()
	defer release()
	one, two := pod("one", "app 2"), pod("two", "app 1")
	first := w.reserve(t.Context(), one)
	if verb := <-waiting; verb != "GetPreferredAllocation" {
		t.Errorf("got the call %s, want GetPreferredAllocation", verb)
	}
	second := w.reserve(t.Context(), two)
	release()
	if err := errors.Join(<-first, <-second); err != nil {
		t.Fatal(err)
	}
	w.has(one, "app", "d3,d4")
	w.has(two, "app", "d2")
}

// TestLateDevicesSideBySide checks that the containers of a pod that was admitted without devices ask for them in
// parallel: the plugin is called once for each.
func TestLateDevicesSideBySide(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := pod("one", "app 1", "other 1")
	w.admit(one)
	p := w.plugin(nil)
	waiting, release := p.Hold()
	defer release()
	answers := make(chan error, 2)
	for i := range one.Spec.Containers {
		go func() {
			_, err := w.devices.Container(t.Context(), one, &one.Spec.Containers[i])
			answers <- err
		}()
	}
	<-waiting
	release()
	if err := errors.Join(<-answers, <-answers); err != nil {
		t.Error(err)
	}
	got, want := slices.Sorted(slices.Values(p.Calls())), []string{"Allocate d1", "Allocate d2"}
	if !slices.Equal(got, want) {
		t.Errorf("the plugin was asked %q, want %q", got, want)
	}
}

// TestListedWhileAllocationFails checks that a pod that was admitted without devices is woken by a list of its plugin
// that comes before the allocation has failed.
func TestListedWhileAllocationFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := pod("one", "app 1")
	w.admit(one)
	p := w.plugin(nil)
	p.Fail(errors.New("not yet"))
	waiting, release := p.Hold()
	defer release()
	answer := w.beginPreStart(t.Context(), one)
	<-waiting
	p.SetHealth("d4", false)
	w.untilCapacity(resourceName, 4, 3)
	release()
	if err := <-answer; err == nil {
		t.Error("got an allocation, want the error of the plugin")
	}
	w.Until("the pod is woken", func() bool { return slices.Contains(w.Woken(), "one") })
}
