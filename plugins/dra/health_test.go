package dra_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1"
	"k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	api "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/nodelet/nodelet/test/plugins/dra/fake"
)

const (
	healthy   = health.HealthStatus_HEALTHY
	unhealthy = health.HealthStatus_UNHEALTHY
)

func (w *world) healthChanged(pods []types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed = append(w.changed, pods...)
}

// health returns the health of the devices of container app, as "resource: device health message; …".
func (w *world) health(p *corev1.Pod) string {
	var all []string
	for _, r := range w.dra.Health(p)["app"] {
		for _, one := range r.Resources {
			text := fmt.Sprintf("%s: %s %s", r.Name, one.ResourceID, one.Health)
			if one.Message != nil {
				text += " " + *one.Message
			}
			all = append(all, text)
		}
	}
	return strings.Join(all, "; ")
}

// untilHealth waits until the devices of container app have this health, and until the pod was notified.
func (w *world) untilHealth(p *corev1.Pod, want string) {
	w.T.Helper()
	w.Until(want, func() bool { return w.health(p) == want })
	w.Until("the pod hears of it", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		changed := w.changed
		w.changed = nil
		if len(changed) > 0 && changed[0] != p.UID {
			w.T.Errorf("got a change of pod %s, want %s only", changed[0], p.UID)
		}
		return len(changed) > 0
	})
}

// reporter starts a driver whose claims have two devices, d1 by a CDI name, and that reports their health.
func (w *world) reporter(service string) *fake.Driver {
	w.T.Helper()
	return w.driver(func(c *fake.Config) {
		c.Services = []string{api.DRAPluginService, service}
		c.Devices = func(*api.Claim) []*api.Device {
			return []*api.Device{
				{
					PoolName:     "pool",
					DeviceName:   "d1",
					RequestNames: []string{"first"},
					CdiDeviceIds: []string{"nodelet.test/fake=d1"},
				},
				{
					PoolName:     "pool",
					DeviceName:   "d2",
					RequestNames: []string{"second"},
				},
			}
		}
	})
}

// TestClaimHealth follows the health of the devices of a claim: reports by both versions of the service, a stream that
// ends, a restart of the agent, and a driver that goes.
func TestClaimHealth(t *testing.T) {
	for _, service := range []string{health.DRAResourceHealthService, v1alpha1.DRAResourceHealthService} {
		t.Run(service, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			d := w.reporter(service)
			p := pod("a", "gpu")
			w.put("gpu", one, p)
			w.prepare(p)
			if got, want := w.health(p), "claim:gpu: nodelet.test/fake=d1 ; claim:gpu: nodelet.test/pool/d2 "; got != want {
				t.Errorf("before the first report: got %q, want %q", got, want)
			}
			d.Report(fake.DeviceHealth("d1", healthy, "", 3600), fake.DeviceHealth("d3", unhealthy, "", 3600))
			w.untilHealth(p, "claim:gpu: nodelet.test/fake=d1 Healthy; claim:gpu: nodelet.test/pool/d2 Unknown")
			d.Report(fake.DeviceHealth("d1", unhealthy, "ECC errors", 3600), fake.DeviceHealth("d2", healthy, "", 3600))
			const reported = "claim:gpu: nodelet.test/fake=d1 Unhealthy ECC errors; claim:gpu: nodelet.test/pool/d2 Healthy"
			w.untilHealth(p, reported)
			w.restart()
			w.untilHealth(p, reported)
			d.EndReports()
			const unknown = "claim:gpu: nodelet.test/fake=d1 Unknown; claim:gpu: nodelet.test/pool/d2 Unknown"
			w.untilHealth(p, unknown)
		})
	}
}

// TestHealthOfRequests checks that a container that uses one request of a claim shows the devices of that.
func TestHealthOfRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.reporter(health.DRAResourceHealthService)
	p := pod("a", "gpu")
	p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu", Request: "second"}}
	w.put("gpu", one, p)
	w.prepare(p)
	long := strings.Repeat("ä", corev1.ResourceHealthMessageMaxLength)
	d.Report(fake.DeviceHealth("d2", healthy, long, 3600))
	w.Until("the device is healthy", func() bool {
		return strings.HasPrefix(w.health(p), "claim:gpu/second: nodelet.test/pool/d2 Healthy ")
	})
	message := *w.dra.Health(p)["app"][0].Resources[0].Message
	if len(message) > corev1.ResourceHealthMessageMaxLength || !utf8.ValidString(message) ||
		!strings.HasSuffix(message, "...") {
		t.Errorf("got a message of %d bytes, %q", len(message), message[len(message)-10:])
	}
	d.Close()
	w.Until("the driver is gone", func() bool {
		return w.health(p) == "claim:gpu/second: nodelet.test/pool/d2 Unknown"
	})
}

// TestHealthExpires checks that a report is valid for the time that the driver says.
func TestHealthExpires(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.reporter(health.DRAResourceHealthService)
	p := pod("a", "gpu")
	w.put("gpu", one, p)
	w.prepare(p)
	d.Report(fake.DeviceHealth("d1", healthy, "", 1), fake.DeviceHealth("d2", healthy, "", 3600))
	w.untilHealth(p, "claim:gpu: nodelet.test/fake=d1 Unknown; claim:gpu: nodelet.test/pool/d2 Healthy")
}

// TestHealthNotServed checks that the health is unknown if the driver does not report it.
func TestHealthNotServed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.driver(nil)
	p := pod("a", "gpu")
	w.put("gpu", one, p)
	w.prepare(p)
	if got, want := w.health(p), "claim:gpu: nodelet.test/fake=uid-gpu Unknown"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := w.dra.Health(pod("none")); got != nil {
		t.Errorf("a pod without claims: got %v", got)
	}
}
