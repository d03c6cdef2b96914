package agent

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/cri"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/pods"
)

// table is what the supervisor's loop knows of the pods of the node: those that the sources want, those that the
// runtime has listed, and those that have a worker. Only the loop uses it.
type table struct {
	// set is the newest full set of the sources.
	set *pods.Set
	// listed are the pods of the runtime's last list that have not gone since; nil before the first list.
	listed  map[types.UID]cri.PodSummary
	workers map[types.UID]*entry
	// again are the pods that their source has and whose worker has ended: they hold nothing any more.
	again map[types.UID]bool
	files PodFiles
}

func newTable(files PodFiles) *table {
	return &table{set: &pods.Set{}, workers: map[types.UID]*entry{}, again: map[types.UID]bool{}, files: files}
}

// workerEnded forgets the worker of a pod, which has ended.
func (t *table) workerEnded(uid types.UID) {
	delete(t.workers, uid)
	delete(t.listed, uid)
	delete(t.again, uid)
	if t.set.Pods[uid] != nil {
		t.again[uid] = true
	}
}

// complete reports whether every source has synced and the runtime has listed its pods.
func (t *table) complete() bool { return t.set.Synced && t.listed != nil }

// pending returns the pods without a worker, in the order of admission: first those that an earlier run of the agent
// has admitted, then static pods, then by age.
func (t *table) pending() []*corev1.Pod {
	var found []*corev1.Pod
	rank := map[types.UID]int{}
	for uid, pod := range t.set.Pods {
		if t.workers[uid] != nil {
			continue
		}
		found = append(found, pod)
		switch {
		case t.admittedBefore(pod):
			rank[uid] = 0
		case podutil.IsStatic(pod):
			rank[uid] = 1
		default:
			rank[uid] = 2
		}
	}
	slices.SortFunc(found, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(rank[a.UID], rank[b.UID]), a.CreationTimestamp.Compare(b.CreationTimestamp.Time))
	})
	return found
}

// admittedBefore reports whether an earlier run of the agent has admitted the pod, which has not ended since. It looks
// at the runtime and the disk of the node: other clients can write the status in the API, and a static pod has no
// status of its own.
func (t *table) admittedBefore(pod *corev1.Pod) bool {
	return !t.again[pod.UID] && t.hasTraces(pod.UID)
}

// hasTraces reports whether the runtime or the disk may have something of a pod.
func (t *table) hasTraces(uid types.UID) bool {
	if _, inRuntime := t.listed[uid]; inRuntime {
		return true
	}
	onDisk, err := t.files.HasPodDir(uid)
	return onDisk || err != nil
}

// others returns the admitted pods that have not ended, with their allocated resources and, in their statuses, those
// that they have. It excludes orphaned pods even while they end: the scheduler counts their resources as free, and a
// refused replacement would fail for good. ending are the preempted pods that still hold resources; the critical pod
// for which they end is in all already.
func (t *table) others(but types.UID) (all, ending []*corev1.Pod) {
	for uid, e := range t.workers {
		switch {
		case uid == but || !t.holds(e):
		case t.replaced(e):
			ending = append(ending, e.holding())
		default:
			all = append(all, e.holding())
		}
	}
	return all, ending
}

// holds reports whether a pod was admitted and has not released its resources. What the API shows may be older or
// newer than what the worker knows.
func (t *table) holds(e *entry) bool {
	return t.set.Pods[e.source.UID] != nil && e.active() && !e.worker.isReleased()
}

// replaced reports whether a critical pod holds the resources of this one.
func (t *table) replaced(e *entry) bool {
	by := e.preemptor
	return by != nil && t.workers[by.source.UID] == by && t.holds(by)
}

// nameBusy reports whether an earlier static pod of the same full name still keeps it. Pods of the API need not wait,
// and no static pod waits for one: the API server keeps their names apart.
func (t *table) nameBusy(pod *corev1.Pod) bool {
	for _, e := range t.workers {
		p := e.source
		if p.Name == pod.Name && p.Namespace == pod.Namespace && p.UID != pod.UID && e.keepsName() {
			return true
		}
	}
	return false
}

// unwanted reports whether every source has synced and none knows the pod. While a manifest has been unreadable since
// the start, any pod may come from it that does not come from the API server.
func (t *table) unwanted(uid types.UID) bool {
	_, wanted := t.set.Pods[uid]
	fromAPI := pods.Source(t.listed[uid].Source) == pods.SourceAPI
	return t.set.Synced && !wanted && (fromAPI || !t.set.Unknown())
}

// gone reports whether a pod has no worker and every source has synced without it.
func (t *table) gone(uid types.UID) bool { return t.workers[uid] == nil && t.unwanted(uid) }

// superseded reports whether the manifest of a static pod has changed while the agent was not running. The source of
// the manifest decides; other sources are not waited for, as the new pod may be what they depend on.
func (t *table) superseded(old cri.PodSummary) bool {
	if _, wanted := t.set.Pods[old.UID]; wanted || !pods.Source(old.Source).Static() {
		return false
	}
	for _, pod := range t.set.Pods {
		if pod.Name == old.Name && pod.Namespace == old.Namespace && podutil.IsStatic(pod) {
			return true
		}
	}
	return false
}

// ended reports whether no process of the pod can use a CPU or a device any more. The status of an evicted pod is
// Failed while it still runs. For an ended pod it does not wait for the rest, such as volumes: the scheduler already
// counts its devices as free.
func (t *table) ended(pod types.UID) bool {
	if e := t.workers[pod]; e != nil {
		return e.worker.isReleased() || shownEnded(e.pod()) && e.worker.nothingRuns()
	}
	return t.listed != nil && t.unwanted(pod) && !t.hasTraces(pod)
}

// present returns the pods that keep their names, and those without a worker that have something in the runtime, by
// name. It leaves out those that are known to come from the API server: they have no mirror pod that waits for their
// end.
func (t *table) present() map[types.NamespacedName][]types.UID {
	found := map[types.NamespacedName][]types.UID{}
	add := func(namespace, name string, uid types.UID) {
		key := types.NamespacedName{Namespace: namespace, Name: name}
		found[key] = append(found[key], uid)
	}
	for uid, e := range t.workers {
		if e.keepsName() {
			add(e.source.Namespace, e.source.Name, uid)
		}
	}
	for uid, pod := range t.listed {
		if t.workers[uid] == nil && pods.Source(pod.Source) != pods.SourceAPI {
			add(pod.Namespace, pod.Name, uid)
		}
	}
	return found
}

// demandKnown reports whether each pod that runs has a worker. A pod that every source leaves out does not count: its
// manifest may be unreadable for long.
func (t *table) demandKnown() bool {
	for uid, pod := range t.listed {
		_, wanted := t.set.Pods[uid]
		if pod.Ready && t.workers[uid] == nil && (wanted || !t.set.Synced) {
			return false
		}
	}
	return t.listed != nil
}

// demand returns what the pods request together.
func (t *table) demand() (sum podstate.Demand) {
	for _, e := range t.workers {
		if e.active() {
			sum = sum.Plus(e.resources.Demand())
		}
	}
	return sum
}
