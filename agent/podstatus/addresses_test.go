package podstatus

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
)

// TestPodIPWithZone checks that an address with a zone, which the API server does not take, is not in the status.
func TestPodIPWithZone(t *testing.T) {
	b := build(&corev1.Pod{}, podstate.Observed{
		Sandboxes: []podstate.Sandbox{{ID: "s0", Ready: true, IPs: []string{"fe80::1%eth0", "10.0.0.1", "10.0.0.2"}}},
	})
	b.addresses()
	if got := b.st.PodIPs; b.st.PodIP != "10.0.0.1" || len(got) != 1 {
		t.Errorf("got %s and %v, want only 10.0.0.1", b.st.PodIP, got)
	}
}
