package admission

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// need is how much of one resource must still be freed.
type need struct {
	name   corev1.ResourceName
	amount int64
}

// candidate is a pod that may end, and what it holds.
type candidate struct {
	*corev1.Pod
	held corev1.ResourceList
}

func (c candidate) amount(name corev1.ResourceName) int64 { return podutil.Amount(c.held, name) }

// preempt selects the pods that must end to free the resources that a critical pod lacks. Pods of a higher QoS class
// end only if the pods of the lower classes cannot free enough. Within a class as few pods as possible end. missing
// holds the resources that cannot be freed; no pod ends then.
func preempt(pod *corev1.Pod, short []shortage, others []*corev1.Pod) (victims []*corev1.Pod, missing []need) {
	var needs []need
	for _, s := range short {
		needs = append(needs, need{s.name, s.missing()})
	}
	classes := map[corev1.PodQOSClass][]candidate{}
	for _, other := range others {
		if preemptable(pod, other) {
			class := podutil.QOS(other)
			classes[class] = append(classes[class], candidate{other, held(other)})
		}
	}
	bestEffort, burstable := classes[corev1.PodQOSBestEffort], classes[corev1.PodQOSBurstable]
	guaranteed := fewest(classes[corev1.PodQOSGuaranteed], without(needs, bestEffort, burstable))
	if missing = without(needs, bestEffort, burstable, guaranteed); len(missing) > 0 {
		return nil, missing
	}
	burstable = fewest(burstable, without(needs, bestEffort, guaranteed))
	bestEffort = fewest(bestEffort, without(needs, burstable, guaranteed))
	for _, c := range slices.Concat(bestEffort, burstable, guaranteed) {
		victims = append(victims, c.Pod)
	}
	return victims, nil
}

// preemptable reports whether other may end for a critical pod.
func preemptable(pod, other *corev1.Pod) bool {
	if !podutil.IsCritical(other) {
		return true
	}
	mine, its := pod.Spec.Priority, other.Spec.Priority
	return mine != nil && its != nil && *mine > *its
}

// without returns the needs that remain after these pods have ended.
func without(needs []need, lists ...[]candidate) (left []need) {
	for _, n := range needs {
		for _, c := range slices.Concat(lists...) {
			n.amount = max(0, n.amount-c.amount(n.name))
		}
		if n.amount > 0 {
			left = append(left, n)
		}
	}
	return left
}

// fewest selects pods until the needs are met or no pod is left. Each time it selects the pod after which the least
// remains to be freed; among equal pods the one that requests less memory, then less CPU.
func fewest(pods []candidate, needs []need) (chosen []candidate) {
	pods = slices.Clone(pods)
	for len(needs) > 0 && len(pods) > 0 {
		best := slices.MinFunc(pods, func(a, b candidate) int {
			return cmp.Or(cmp.Compare(remainder(needs, a), remainder(needs, b)),
				cmp.Compare(a.amount(corev1.ResourceMemory), b.amount(corev1.ResourceMemory)),
				cmp.Compare(a.amount(corev1.ResourceCPU), b.amount(corev1.ResourceCPU)),
				cmp.Compare(a.UID, b.UID))
		})
		chosen = append(chosen, best)
		pods = slices.DeleteFunc(pods, func(c candidate) bool { return c.Pod == best.Pod })
		needs = without(needs, []candidate{best})
	}
	return chosen
}

// remainder measures how much of the needs remains after a pod has ended: the sum of the squares of the remaining
// fraction of each resource. With fractions, the units do not matter.
func remainder(needs []need, c candidate) (sum float64) {
	for _, n := range needs {
		if left := float64(n.amount - c.amount(n.name)); left > 0 {
			sum += left / float64(n.amount) * left / float64(n.amount)
		}
	}
	return sum
}

func cannotPreempt(missing []need) *podstate.Rejection {
	var list strings.Builder
	for _, n := range missing {
		fmt.Fprintf(&list, "(res: %s, q: %d), ", n.name, n.amount)
	}
	return reject(podutil.ReasonUnexpectedAdmission, "Unexpected error while attempting to recover from admission "+
		"failure: preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: ["+
		list.String()+"]")
}
