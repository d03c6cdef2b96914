package devices_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/plugins/devices/fake"
)

// health returns the health of the devices of a container, as "resource: device health, …".
func (w *world) health(p *corev1.Pod, container string) string {
	var all []string
	for _, r := range w.devices.Health(p.UID)[container] {
		var of []string
		for _, one := range r.Resources {
			of = append(of, fmt.Sprintf("%s %s", one.ResourceID, one.Health))
		}
		all = append(all, string(r.Name)+": "+strings.Join(of, ", "))
	}
	return strings.Join(all, "; ")
}

// untilHealth waits until the devices of container app have this health, and until the pod was notified.
func (w *world) untilHealth(p *corev1.Pod, want string) {
	w.T.Helper()
	w.Until(want, func() bool { return w.health(p, "app") == want })
	w.Until("the pod hears of it", func() bool {
		changed := w.takeChanged()
		if len(changed) > 0 && changed[0] != p.UID {
			w.T.Errorf("got a change of pod %s, want %s only", changed[0], p.UID)
		}
		return len(changed) > 0
	})
}

// TestDeviceHealth follows the health of a container's devices while they fail, recover and disappear, while the plugin
// goes and comes back, and over a restart of the agent.
func TestDeviceHealth(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.plugin(nil)
	one, none := pod("one", "app 2", "other 1"), pod("none")
	w.admit(one)
	w.takeChanged()
	if got, want := w.health(one, "app"), "nodelet.test/fake: d1 Healthy, d2 Healthy"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := w.health(one, "other"), "nodelet.test/fake: d3 Healthy"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := w.devices.Health(none.UID); got != nil {
		t.Errorf("a pod without devices: got %v", got)
	}
	p.SetHealth("d2", false)
	w.untilHealth(one, "nodelet.test/fake: d1 Healthy, d2 Unhealthy")
	p.SetHealth("d2", true)
	w.untilHealth(one, "nodelet.test/fake: d1 Healthy, d2 Healthy")
	p.Close()
	w.untilHealth(one, "nodelet.test/fake: d1 Unknown, d2 Unknown")
	w.plugin(func(c *fake.Config) { c.Devices = []string{"d1"} })
	w.untilHealth(one, "nodelet.test/fake: d1 Healthy, d2 Unknown")
	w.Kill()
	w.begin()
	if got, want := w.health(one, "app"), "nodelet.test/fake: d1 , d2 "; got != want {
		t.Errorf("after a restart: got %q, want %q", got, want)
	}
	w.plugin(nil)
	w.untilHealth(one, "nodelet.test/fake: d1 Healthy, d2 Healthy")
}

// TestHealthWithdrawn checks that the health is unknown when the plugin does not register again.
func TestHealthWithdrawn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.plugin(nil)
	one := pod("one", "app 1")
	w.admit(one)
	w.Kill()
	p.Close()
	w.takeChanged()
	w.grace = time.Nanosecond
	w.begin()
	w.untilHealth(one, "nodelet.test/fake: d1 Unknown")
}
