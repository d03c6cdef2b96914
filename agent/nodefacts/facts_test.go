package nodefacts

import (
	"log/slog"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/spec"
)

// TestHostIPs checks that pods see one address of the node in each IP family, and external ones if there are no
// internal ones: the API server refuses a status with two addresses of one family.
func TestHostIPs(t *testing.T) {
	t.Parallel()
	internal := func(ip string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip}
	}
	external := func(ip string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: ip}
	}
	name := corev1.NodeAddress{Type: corev1.NodeHostName, Address: "node"}
	type addresses = []corev1.NodeAddress
	for what, c := range map[string]struct {
		of   addresses
		want []string
	}{
		"none":                {addresses{name}, nil},
		"one":                 {addresses{internal("10.0.0.1"), name}, []string{"10.0.0.1"}},
		"both families":       {addresses{internal("fd00::1"), internal("10.0.0.1")}, []string{"fd00::1", "10.0.0.1"}},
		"several of a family": {addresses{internal("10.0.0.1"), internal("10.0.0.2")}, []string{"10.0.0.1"}},
		"second family last": {
			addresses{internal("10.0.0.1"), internal("10.0.0.2"), internal("fd00::1")}, []string{"10.0.0.1", "fd00::1"}},
		"only external":  {addresses{name, external("192.0.2.1")}, []string{"192.0.2.1"}},
		"external first": {addresses{external("192.0.2.1"), internal("10.0.0.1")}, []string{"10.0.0.1"}},
		"other family outside": {
			addresses{external("2001:db8::1"), internal("10.0.0.1")}, []string{"10.0.0.1", "2001:db8::1"}},
		"with a zone":    {addresses{internal("fe80::1%eth0"), internal("fd00::1")}, []string{"fd00::1"}},
		"not an address": {addresses{internal("node.example"), internal("10.0.0.1")}, []string{"10.0.0.1"}},
	} {
		facts := New(spec.Node{}, "", slog.New(slog.DiscardHandler))
		node := &corev1.Node{Status: corev1.NodeStatus{Addresses: c.of}}
		for call, want := range []bool{c.want != nil, false} {
			if got := facts.Update(node, nil); got != want {
				t.Errorf("%s: update %d: got a change %v, want %v", what, call, got, want)
			}
		}
		if got := facts.Spec().HostIPs; !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", what, got, c.want)
		}
	}
}
