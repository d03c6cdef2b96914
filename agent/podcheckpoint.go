package agent

import (
	"log/slog"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/placement/state"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// checkpoint is what a kubelet that follows finds of what is allocated to pods: it admits the pods that run with the
// entry of each, or with the spec if there is none. The agent itself does not use it.
//
// Invariant: after a decision about resizes, if the file could be written, a pod that holds other resources than its
// spec requests has an entry, and no entry of a pod that is known says anything else than what the pod holds.
type checkpoint struct {
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

// checkpointRetry is how soon a failed write is made up for: a full disk must not delay all pods.
const checkpointRetry = 10 * time.Second

// keep makes the next save write the right entry of a pod that holds r. resized: the pod needs one even if it holds
// what it requests.
func (c *checkpoint) keep(pod *corev1.Pod, r *podResources, resized bool) {
	if c.entries == nil {
		c.read()
	}
	has, there := c.entries[pod.UID]
	if there && !r.allocated.holds(has, pod) || !there && (resized || r.pod != pod) {
		c.entries[pod.UID], c.changed = entryOf(r.pod, has), true
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

func (c *checkpoint) read() {
	var err error
	if c.entries, err = c.file.Load(); err != nil {
		c.log.Warn("cannot read what the kubelet has allocated to pods; the next resize of a pod replaces that", "err", err)
	}
	if c.entries == nil {
		c.entries = map[types.UID]state.PodResources{}
	}
}

// save writes the file if it must have other entries, but not soon after a write that has failed.
func (c *checkpoint) save() {
	if !c.changed || c.failed != nil && time.Since(c.tried) < checkpointRetry {
		return
	}
	maps.DeleteFunc(c.entries, func(uid types.UID, _ state.PodResources) bool { return c.gone(uid) })
	before := c.failed
	c.failed, c.tried = c.file.Save(c.entries), time.Now()
	c.changed = c.failed != nil
	if c.failed != nil && (before == nil || before.Error() != c.failed.Error()) {
		c.log.Warn("cannot record for the kubelet what is allocated to pods; one that follows may refuse pods that run",
			"err", c.failed)
	}
}
