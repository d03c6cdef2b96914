package execute

import (
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
)

// TestHookAddress checks that a hook goes to the network on which the sandbox is, also if the pod is to be on another,
// and to that of the spec if the runtime does not say.
func TestHookAddress(t *testing.T) {
	const here, elsewhere = "127.0.0.1", "127.0.0.2"
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	get := &corev1.HTTPGetAction{Port: intstr.Parse(s.URL[len("http://"+here+":"):])}
	for name, c := range map[string]struct {
		box    podstate.Sandbox
		onHost bool
		node   string
	}{
		"leaves its own network":    {podstate.Sandbox{Network: podstate.NetworkPod, IPs: []string{here}}, true, elsewhere},
		"leaves the node's":         {podstate.Sandbox{Network: podstate.NetworkHost}, false, here},
		"not known, own network":    {podstate.Sandbox{IPs: []string{here}}, false, elsewhere},
		"not known, node's network": {podstate.Sandbox{IPs: []string{elsewhere}}, true, here},
	} {
		x := &hooks{&Backends{
			Runtime: deafRuntime{},
			Node:    func() *spec.Node { return &spec.Node{HostIPs: []string{c.node}} },
		}}
		pod := &corev1.Pod{Spec: corev1.PodSpec{HostNetwork: c.onHost}}
		err := x.run(t.Context(), &Task{Pod: pod, Sandbox: &c.box}, "id", &corev1.Container{Name: "app"},
			&corev1.LifecycleHandler{HTTPGet: get})
		if err != nil {
			t.Errorf("%s: got %v, want that the hook reaches the server", name, err)
		}
	}
}
