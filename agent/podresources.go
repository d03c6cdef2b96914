package agent

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// allocationFile is the file in a pod's directory that records its allocation, once that may differ from its spec.
const allocationFile = "granted-resources"

// podResources are the resources that are allocated to a pod, and those that it requests instead.
type podResources struct {
	// allocated is what the pod holds; nil for a pod of which no source knows. pod is the pod with that in its spec.
	allocated *allocation
	pod       *corev1.Pod
	// resizing: the spec requests other resources. pending is why they are not allocated yet; nil if that was not
	// decided.
	resizing bool
	pending  *podstate.PendingResize
	// demand is what the pod adds to the demand of its class.
	demand podstate.Demand
}

// update records a new version of the pod. mayResize is false for a pod that ends or was refused.
func (r *podResources) update(pod *corev1.Pod, mayResize bool) {
	r.pod = r.allocated.apply(pod)
	r.resizing = mayResize && r.pod != pod
	if !r.resizing {
		r.pending = nil
	}
	if r.pod == pod {
		r.allocated.Generation = max(r.allocated.Generation, pod.Generation)
	}
	r.demand = demandOf(r.pod)
}

// undecided reports whether the pod requests other resources, about which is not decided yet.
func (r *podResources) undecided() bool { return r.resizing && r.pending == nil }

// resize allocates what the spec of the pod asks for.
func (r *podResources) resize(pod *corev1.Pod) {
	next := desiredResources(pod)
	next.Before = map[string]corev1.ResourceRequirements{}
	for st := range podutil.ContainerStatuses(&pod.Status) {
		id := podutil.RuntimeID(st.ContainerID)
		if before, known := r.allocated.Before[id]; known {
			next.Before[id] = before
		} else if _, c := podutil.Container(&r.pod.Spec, st.Name); c != nil {
			next.Before[id] = spec.EffectiveResources(r.pod, c)
		}
	}
	*r = podResources{allocated: next, pod: pod, demand: demandOf(pod)}
}

// forPlan converts the allocation to what the planner needs to know.
func (r *podResources) forPlan(node *spec.Node) *podstate.Allocation {
	g := &podstate.Allocation{
		Generation: r.allocated.Generation,
		Pending:    r.pending,
		Before:     r.allocated.Before,
		Pod:        spec.PodCgroup(r.pod, node).Size,
		Containers: make(map[string]podstate.ContainerAllocation, len(r.pod.Spec.Containers)),
		Requests:   resourcehelper.PodRequests(r.pod, resourcehelper.PodResourcesOptions{}),
		Limits:     resourcehelper.PodLimits(r.pod, resourcehelper.PodResourcesOptions{}),
	}
	for _, c := range podutil.ContainersWithResources(&r.pod.Spec) {
		g.Containers[c.Name] = podstate.ContainerAllocation{
			Size:      spec.SizeOf(spec.ContainerResources(r.pod, c, node)),
			Resources: spec.EffectiveResources(r.pod, c),
		}
	}
	return g
}

// allocations keeps in the pods' directories what they hold of the node's CPU and memory, and also for the kubelet.
type allocations struct {
	files   PodFiles
	kubelet checkpoint
	log     *slog.Logger
}

func newAllocations(cfg *Config, t *table) *allocations {
	kubelet := checkpoint{file: cfg.AllocatedPods, gone: t.gone, log: cfg.Log}
	return &allocations{cfg.PodFiles, kubelet, cfg.Log}
}

// update brings the resources of an entry in line with a new version of its pod. If it asks for a resize, what is
// recorded follows from the decision.
func (a *allocations) update(e *entry, pod *corev1.Pod) {
	if e.resources.allocated == nil {
		e.resources.allocated = a.load(pod)
	}
	e.resources.update(pod, pod.DeletionTimestamp == nil && !shownEnded(pod) && e.rejected == nil)
	if !e.resources.undecided() {
		a.kubelet.keep(pod, &e.resources, false)
	}
}

// load returns what a pod holds that is new to this run of the agent. An earlier run has recorded it if it may differ
// from the spec. Without a record, or if a kubelet has resized the pod since, the API shows it.
func (a *allocations) load(pod *corev1.Pod) *allocation {
	held, err := a.read(pod.UID)
	switch {
	case err == nil && !held.outdated(pod):
		return held
	case err != nil && !errors.Is(err, os.ErrNotExist):
		a.log.Warn("cannot read the resources allocated to a pod, taking them from its status",
			"pod", nameOf(pod), "podUID", pod.UID, "err", err)
	}
	if pod.Status.StartTime == nil {
		return desiredResources(pod)
	}
	shown := allocationOf(pod)
	if err == nil {
		shown.Before = held.Before // these instances have been resized, by whichever agent
	}
	return shown
}

func (a *allocations) read(uid types.UID) (*allocation, error) {
	content, err := a.files.ReadPodFile(uid, allocationFile)
	if err != nil {
		return nil, err
	}
	held := &allocation{}
	if err = json.Unmarshal(content, held); err == nil && len(held.Containers) == 0 {
		err = errors.New(allocationFile + " names no container")
	}
	return held, err
}

// save records what a pod holds after a decision about a resize.
func (a *allocations) save(pod *corev1.Pod, r *podResources) {
	content, err := json.Marshal(r.allocated)
	if err == nil {
		err = a.files.WritePodFile(pod.UID, allocationFile, content)
	}
	if err != nil {
		a.log.Warn("cannot record the resources allocated to a pod; after a restart they are taken from its status",
			"pod", nameOf(pod), "podUID", pod.UID, "err", err)
	}
	a.kubelet.keep(pod, r, true)
}
