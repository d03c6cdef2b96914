package execute

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
)

// TestUnstarted checks that volumes hear whether the pod has a container: without one, a kubelet that this agent
// replaced may not have ended its work on them.
func TestUnstarted(t *testing.T) {
	x := &mounts{
		Backends: &Backends{Node: func() *spec.Node { return &spec.Node{} }},
		limiters: newLimiters(),
	}
	for containers, want := range map[int]bool{0: true, 1: false} {
		task := &Task{Pod: &corev1.Pod{}, Instances: make([]podstate.Container, containers)}
		if got := x.request(task, &corev1.Volume{}).Unstarted; got != want {
			t.Errorf("%d containers: got unstarted %t, want %t", containers, got, want)
		}
	}
}
