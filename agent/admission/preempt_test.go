package admission

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Pods of the three QoS classes that request CPU in thousandths and memory in bytes.
const (
	guaranteed = `{spec: {containers: [{name: app, resources: {limits: &r {cpu: %dm, memory: %d}, requests: *r}}]}}`
	burstable  = `{spec: {containers: [{name: app, resources: {requests: {cpu: %dm, memory: %d}}}]}}`
	bestEffort = `{spec: {containers: [{name: app}]}}`
)

func named(t *testing.T, name, text string, amounts ...any) *corev1.Pod {
	pod := podOf(t, fmt.Sprintf(text, amounts...))
	pod.Name, pod.UID = name, types.UID(name)
	return pod
}

func withPriority(pod *corev1.Pod, p int32) *corev1.Pod {
	pod.Spec.Priority = &p
	return pod
}

func static(pod *corev1.Pod) *corev1.Pod {
	pod.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	return pod
}

func TestPreempt(t *testing.T) {
	const critical = 2_000_001_000
	request := func(cpu, memory int) *corev1.Pod {
		return withPriority(named(t, "critical", burstable, cpu, memory), critical)
	}
	small := []*corev1.Pod{
		named(t, "g3", guaranteed, 3, 3), named(t, "g1", guaranteed, 1, 1),
		named(t, "b3", burstable, 3, 3), named(t, "b1", burstable, 1, 1), named(t, "b1m", burstable, 1, 2),
		named(t, "e", bestEffort),
	} // 9 thousandths of 10 and 10 bytes of 20 are requested
	cannot := podutil.ReasonUnexpectedAdmission + ": Unexpected error while attempting to recover from admission " +
		"failure: preemption: error finding a set of pods to preempt: no set of running pods found to reclaim " +
		"resources: [(res: cpu, q: 1), ]"
	other := func(p int32) []*corev1.Pod { return []*corev1.Pod{withPriority(named(t, "other", burstable, 9, 1), p)} }
	zoned := request(4, 1)
	zoned.Spec.NodeSelector = map[string]string{"zone": "b"}
	shrinking := named(t, "b1", burstable, 1, 1)
	shrinking.Status.Resources = new(sized(9, 0))
	for name, c := range map[string]struct {
		pod    *corev1.Pod
		others []*corev1.Pod
		free   string
		want   []string
		short  corev1.ResourceName
		reject string // reason and message
	}{
		"no preemption needed":           {pod: request(1, 1), others: small},
		"the one that frees just enough": {pod: request(4, 1), others: small, want: []string{"b3"}, short: "cpu"},
		"less memory where CPU is equal": {pod: request(2, 1), others: small, want: []string{"b1"}, short: "cpu"},
		"all burstable, then the guaranteed one that is enough": {
			pod: request(7, 1), others: small, want: []string{"b1", "b1m", "b3", "g1"}, short: "cpu",
		},
		"a guaranteed pod spares a burstable one": {
			pod: request(8, 1), others: small, want: []string{"b1", "b3", "g3"}, short: "cpu",
		},
		"two resources": {pod: request(2, 13), others: small, want: []string{"b3"}, short: "cpu"},
		"the number of pods": {
			pod: request(1, 1), others: small, free: `{cpu: 10m, memory: 20, pods: 6}`, want: []string{"e"}, short: "pods",
		},
		"more than the node has": {pod: request(11, 1), others: small, short: "cpu", reject: cannot},
		"a pod that is not critical": {
			pod: withPriority(request(4, 1), 1_000_000_000), others: small, short: "cpu",
			reject: "OutOfcpu: Node didn't have enough resource: cpu, requested: 4, used: 9, capacity: 10",
		},
		"a static pod": {
			pod: static(named(t, "static", burstable, 2, 1)), others: small, want: []string{"b1"}, short: "cpu",
		},
		"a pod that is being resized to less frees what it has": {
			pod: request(8, 1), others: []*corev1.Pod{shrinking}, want: []string{"b1"}, short: "cpu",
		},
		"critical pods are not preempted": {
			pod: static(named(t, "static", burstable, 2, 1)), others: other(critical), short: "cpu", reject: cannot,
		},
		"critical pods of a lower priority are preempted": {
			pod: request(2, 1), others: other(critical - 1), want: []string{"other"}, short: "cpu",
		},
		"no preemption for a pod that does not match the node": {
			pod: zoned, others: small,
			reject: "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
		},
	} {
		t.Run(name, func(t *testing.T) {
			node, free := &corev1.Node{}, corev1.ResourceList{}
			fromYAML(t, admitNode, node)
			if c.free == "" {
				c.free = admitFree
			}
			fromYAML(t, c.free, &free)
			v := Admit(c.pod, nodeOf(node, free), c.others)
			var got []string
			for _, pod := range v.Preempt {
				got = append(got, pod.Name)
			}
			slices.Sort(got)
			if !slices.Equal(got, c.want) || v.Short != c.short {
				t.Errorf("got victims %v for %q, want %v for %q", got, v.Short, c.want, c.short)
			}
			reject := ""
			if v.Rejection != nil {
				reject = v.Rejection.Reason + ": " + v.Rejection.Message
			}
			if reject != c.reject {
				t.Errorf("got rejection %q, want %q", reject, c.reject)
			}
		})
	}
}

// TestPreemptAddsUpOnce checks that the requests of each pod are added up once, however many pods have to end, so that
// admission stays cheap on a node with many pods: other pods wait for it.
func TestPreemptAddsUpOnce(t *testing.T) {
	const pods, ending, each = 100, 20, 10
	var others []*corev1.Pod
	for i := range pods {
		others = append(others, named(t, fmt.Sprint(i), burstable, each, each))
	}
	short := []shortage{{corev1.ResourceCPU, ending * each, pods * each, pods * each}}
	critical := withPriority(named(t, "critical", burstable, ending*each, 0), 2_000_001_000)
	one := testing.AllocsPerRun(5, func() { requestsOf(others[0]) })
	all := testing.AllocsPerRun(5, func() {
		if victims, _ := preempt(critical, short, others); len(victims) != ending {
			t.Fatalf("got %d pods that end, want %d", len(victims), ending)
		}
	})
	if all > 2*pods*one {
		t.Errorf("got %.0f allocations for %d pods, want not much more than %.0f for each", all, pods, one)
	}
}
