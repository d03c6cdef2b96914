package allocation

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodelet/nodelet/agent/podstate"
)

// TestHugeDemand checks that pods that request more than any number do not take the shares and the protection away from
// the others of their class.
func TestHugeDemand(t *testing.T) {
	const enough = 1 << 59
	requests := corev1.ResourceList{
		"cpu": resource.MustParse("13835058055282163"), "memory": resource.MustParse("9223372036854775808"),
	}
	burstable := &corev1.Pod{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests}}},
	}}
	guaranteed := burstable.DeepCopy()
	guaranteed.Spec.Containers[0].Resources.Limits = requests
	var sum podstate.Demand
	for range 20 {
		sum = sum.Plus(demandOf(burstable)).Plus(demandOf(guaranteed))
		if sum.BurstableCPU < enough || sum.BurstableMemory < enough || sum.GuaranteedMemory < enough {
			t.Fatalf("got %+v, want nothing below %d", sum, enough)
		}
	}
}
