package devices_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/plugins/devices/fake"
)

// resume makes a pod wait for the plugins of its devices.
func (w *world) resume(p *corev1.Pod) <-chan error {
	w.T.Helper()
	result := make(chan error, 1)
	wait := w.devices.Resume(p)
	if wait == nil {
		w.T.Fatalf("pod %s: got no wait, want it to wait for its plugin", p.UID)
	}
	go func() { result <- wait(w.T.Context()) }()
	return result
}

// TestResume checks when a pod may start again with its devices, and why not.
func TestResume(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.plugin(nil)
	one, two := pod("one", "app 1"), pod("two", "init 1", "app 2")
	three := pod("three", "app 1")
	for _, p := range []*corev1.Pod{one, two, three} {
		w.admit(p)
	}
	for _, can := range []*corev1.Pod{one, pod("new", "app 1"), pod("none")} {
		if w.devices.Resume(can) != nil {
			t.Errorf("pod %s: got a wait for a plugin that has registered, want none", can.UID)
		}
	}
	w.Kill()
	p.Close()
	w.timeout = time.Nanosecond
	w.begin()
	refused := func(p *corev1.Pod, want string) {
		t.Helper()
		if err := <-w.resume(p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		w.devices.Release(p.UID)
	}
	refused(one, "no healthy devices present; cannot allocate unhealthy devices nodelet.test/fake")
	w.plugin(func(c *fake.Config) { c.Devices = []string{"d1", "d2"} })
	refused(two, "previously allocated devices are no longer healthy; cannot allocate unhealthy devices nodelet.test/fake")
	w.plugin(nil)
	if w.devices.Resume(three) != nil {
		t.Error("after the plugin is back: got the pod waiting, want it not waiting")
	}
	w.admit(pod("four", "app 3")) // the refused pods have released theirs
}

// TestResumeWithdrawn checks that a pod is refused when the devices of its plugin have been withdrawn from the node.
func TestResumeWithdrawn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.plugin(nil)
	one := pod("one", "app 1")
	w.admit(one)
	w.Kill()
	p.Close()
	w.grace, w.timeout = time.Nanosecond, time.Nanosecond
	w.begin()
	w.Until("the devices are withdrawn", func() bool {
		_, err := w.devices.Reserve(pod("two", "app 1"), nil)
		return err != nil && strings.Contains(err.Error(), "unregistered")
	})
	err := <-w.resume(one)
	if want := "cannot allocate unregistered device nodelet.test/fake"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %q", err, want)
	}
}
