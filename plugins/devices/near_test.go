package devices_test

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/test/plugins/devices/fake"
)

// TestNearDevices checks that pods that are admitted while plugins are still asked do not count on the devices that
// others will get near their CPUs.
func TestNearDevices(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plugin(nil) // d1 belongs to NUMA node 0, the others to none
	one, two := pod("one", "app 1"), pod("two", "app 1")
	view := w.devices.Views(one)[resourceName]
	if got, want := view.Free, []string{"d1", "d2", "d3", "d4"}; !slices.Equal(got, want) {
		t.Errorf("free: got %v, want %v", got, want)
	}
	if got, want := view.All["d1"], []int64{0}; !slices.Equal(got, want) || len(view.All["d2"]) != 0 {
		t.Errorf("NUMA nodes of d1: got %v, want %v", got, want)
	}
	near := func(container string, node int64) bool { return container == "app" && node == 0 }
	allocate, err := w.devices.Reserve(one, near)
	if err != nil {
		t.Fatal(err)
	}
	left := w.devices.Views(two)[resourceName].Free
	if want := []string{"d2", "d3", "d4"}; !slices.Equal(left, want) {
		t.Errorf("free for another pod: got %v, want %v", left, want)
	}
	if err := allocate(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.has(one, "app", "d1")
	w.admit(two)
	w.has(two, "app", "d2")
	if got := w.devices.Views(pod("three")); got != nil {
		t.Errorf("a pod without devices: got %v, want none", got)
	}
}

// TestNearDevicesOfClaims checks that a pod that has one resource by a claim counts on no devices of its plugin.
func TestNearDevicesOfClaims(t *testing.T) {
	t.Parallel()
	const other = "nodelet.test/other"
	w := newWorld(t)
	w.plugin(func(c *fake.Config) { c.Devices = nil })
	w.plugin(func(c *fake.Config) { c.Resource = other })
	one := pod("one", "app 1")
	one.Spec.Containers[0].Resources.Limits[other] = quantity.MustParse("1")
	one.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
		RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "app", ResourceName: resourceName}},
	}
	views := w.devices.Views(one)
	if got, want := slices.Collect(maps.Keys(views)), []string{other}; !slices.Equal(got, want) {
		t.Errorf("resources: got %v, want %v", got, want)
	}
	w.admit(one)
}

// TestNearDevicesOfPlugin checks that, as soon as a plugin has chosen devices, new pods can count on those that they
// were assumed to be, but not on those that other pods need now.
func TestNearDevicesOfPlugin(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		two  *corev1.Pod // assumed to get the devices after d1 and d2
		want []string
	}{
		"alone":                   {pod("two"), []string{"d2", "d3"}},
		"its device not chosen":   {pod("two", "app 1"), []string{"d2"}},
		"one of its devices gone": {pod("two", "app 2"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			p := w.plugin(func(c *fake.Config) { c.Prefer = true })
			far := func(string, int64) bool { return false }
			prefers, choose := p.Hold()
			defer choose()
			allocate, err := w.devices.Reserve(pod("one", "app 1", "other 1"), far)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.devices.Reserve(c.two, far); err != nil {
				t.Fatal(err)
			}
			answer := make(chan error, 1)
			go func() { answer <- allocate(t.Context()) }()
			<-prefers
			allocates, release := p.Hold()
			defer release()
			choose() // d4
			<-allocates
			if got := w.devices.Views(pod("three", "app 1"))[resourceName].Free; !slices.Equal(got, c.want) {
				t.Errorf("free for another pod: got %v, want %v", got, c.want)
			}
			release()
			if err := <-answer; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestNearDevicesOfEndedPods checks that a new pod can count on the devices of pods that have ended.
func TestNearDevicesOfEndedPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plugin(nil)
	done, running := pod("done", "app 2"), pod("running", "app 1")
	w.admit(done)
	w.admit(running)
	w.devices.ReleaseEnded(func(uid types.UID) bool { return uid == done.UID })
	got := w.devices.Views(pod("next", "app 3"))[resourceName].Free
	if want := []string{"d1", "d2", "d4"}; !slices.Equal(got, want) {
		t.Errorf("free after the end of a pod: got %v, want %v", got, want)
	}
}

// TestNearDevicesAllocatedBefore checks that a pod counts on the devices that it has, and on no others unless it lacks
// some: the agent was killed after it allocated them and before it recorded that it admitted the pod.
func TestNearDevicesAllocatedBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.plugin(nil)
	one := pod("one", "init 1", "app 2")
	w.admit(one)
	w.Kill()
	p.Close()
	w.begin()
	free := func(want ...string) {
		t.Helper()
		if got := w.devices.Views(one)[resourceName].Free; !slices.Equal(got, want) {
			t.Errorf("free: got %v, want %v", got, want)
		}
	}
	free("d1", "d2")
	w.plugin(nil)
	free("d1", "d2")
	one.Spec.Containers = append(one.Spec.Containers, pod("", "other 1").Spec.Containers...)
	free("d1", "d2", "d3", "d4")
}
