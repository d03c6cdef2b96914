package allocation

import (
	"log/slog"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/placement/state"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// AllocatedPods is the kubelet's file of what pods hold: placement.AllocatedPods.
type AllocatedPods interface {
	Load() (map[types.UID]state.PodResources, error)
	Save(entries map[types.UID]state.PodResources) error
}

// kubeletFile is what a kubelet that follows finds of what pods hold: it admits the pods that run with the entry of
// each, or with the spec if there is none. The agent itself does not use it.
//
// Invariant: after a decision about resizes, if the file could be written, a pod that holds other resources than its
// spec requests has an entry, and no entry of a pod that is known says anything else than what the pod holds.
type kubeletFile struct {
	file AllocatedPods
	// gone reports whether a pod is known to have gone.
	gone func(types.UID) bool
	log  *slog.Logger
	// entries are those that the file is to have; nil: it was not read yet. changed: it has others. failed is why the
	// write at tried did not change that.
	entries map[types.UID]state.PodResources
	changed bool
	failed  error
	tried   time.Time
}

// saveRetry is how soon a failed write is made up for: a full disk must not delay all pods.
const saveRetry = 10 * time.Second

// keep makes the next save write the right entry of a pod that holds r. resized: the pod needs one even if it holds
// what it requests.
func (k *kubeletFile) keep(pod *corev1.Pod, r *Resources, resized bool) {
	if k.entries == nil {
		k.read()
	}
	has, there := k.entries[pod.UID]
	if there && !r.allocated.holds(has, pod) || !there && (resized || r.pod != pod) {
		k.entries[pod.UID], k.changed = entryOf(r.pod, has), true
	}
}

// holds reports whether a kubelet that finds an entry lets the pod have what is allocated.
func (a *allocation) holds(has state.PodResources, pod *corev1.Pod) bool {
	found := allocation{Containers: has.ContainerResources}
	if has.PodLevelResources != nil {
		found.Pod = *has.PodLevelResources
	}
	admitted := found.apply(pod)
	return a.apply(admitted) == admitted
}

// entryOf returns the entry of a pod with its allocated resources in its spec. has is the one that it replaces.
func entryOf(pod *corev1.Pod, has state.PodResources) state.PodResources {
	has.ContainerResources = map[string]corev1.ResourceRequirements{}
	for _, c := range podutil.ContainersWithResources(&pod.Spec) {
		has.ContainerResources[c.Name] = c.Resources
	}
	has.PodLevelResources = pod.Spec.Resources
	return has
}

func (k *kubeletFile) read() {
	var err error
	if k.entries, err = k.file.Load(); err != nil {
		k.log.Warn("cannot read what the kubelet has allocated to pods; the next resize of a pod replaces that", "err", err)
	}
	if k.entries == nil {
		k.entries = map[types.UID]state.PodResources{}
	}
}

// save writes the file if it must have other entries, but not soon after a write that has failed.
func (k *kubeletFile) save() {
	if !k.changed || k.failed != nil && time.Since(k.tried) < saveRetry {
		return
	}
	maps.DeleteFunc(k.entries, func(uid types.UID, _ state.PodResources) bool { return k.gone(uid) })
	before := k.failed
	k.failed, k.tried = k.file.Save(k.entries), time.Now()
	k.changed = k.failed != nil
	if k.failed != nil && (before == nil || before.Error() != k.failed.Error()) {
		k.log.Warn("cannot record for the kubelet what is allocated to pods; "+
			"a kubelet that replaces nodelet may refuse pods that are running", "err", k.failed)
	}
}
