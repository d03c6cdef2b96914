package agent

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/nodelet/nodelet/agent/admission"
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

// undecided reports whether the pod requests other resources, about which the resizer has not decided yet.
func (r *podResources) undecided() bool { return r.resizing && r.pending == nil }

// resize allocates what the spec of the pod asks for.
func (r *podResources) resize(pod *corev1.Pod) {
	*r = podResources{allocated: desiredResources(pod), pod: pod, demand: demandOf(pod)}
}

// forPlan converts the allocation to what the planner needs to know.
func (r *podResources) forPlan(node *spec.Node) *podstate.Allocation {
	g := &podstate.Allocation{
		Generation: r.allocated.Generation,
		Pending:    r.pending,
		Pod:        spec.PodSize(r.pod, node),
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

// allocations keeps in the pods' directories what they hold of the node's CPU and memory.
type allocations struct {
	files PodFiles
	log   *slog.Logger
}

// update brings the resources of an entry in line with a new version of its pod.
func (a *allocations) update(e *entry, pod *corev1.Pod) {
	if e.resources.allocated == nil {
		e.resources.allocated = a.load(pod)
	}
	e.resources.update(pod, pod.DeletionTimestamp == nil && !finished(pod) && e.rejected == nil)
}

// load returns what a pod holds that is new to this run of the agent. An earlier run has recorded it if it
// may differ from the spec. Without a record the API shows it, if the spec has changed while no agent was running.
func (a *allocations) load(pod *corev1.Pod) *allocation {
	content, err := a.files.ReadPodFile(pod.UID, allocationFile)
	if err == nil {
		held := &allocation{}
		if err = json.Unmarshal(content, held); err == nil && len(held.Containers) > 0 {
			return held
		}
	}
	if !errors.Is(err, os.ErrNotExist) {
		a.log.Warn("cannot read the resources allocated to a pod, taking them from its status",
			"pod", pod.Namespace+"/"+pod.Name, "podUID", pod.UID, "err", err)
	}
	if pod.Status.StartTime == nil {
		return desiredResources(pod)
	}
	return allocationOf(pod)
}

// save records what a pod holds.
func (a *allocations) save(pod *corev1.Pod, held *allocation) {
	content, err := json.Marshal(held)
	if err == nil {
		err = a.files.WritePodFile(pod.UID, allocationFile, content)
	}
	if err != nil {
		a.log.Warn("cannot record the resources allocated to a pod; after a restart they are taken from its status",
			"pod", pod.Namespace+"/"+pod.Name, "podUID", pod.UID, "err", err)
	}
}

// resizer decides about pods that ask for other resources than they hold. Only the loop uses it.
type resizer struct {
	cfg     *Config
	table   *table
	workers *dispatcher
}

// judge decides about all of them whose own admission is complete, in the order of admission.ResizeBefore.
func (z *resizer) judge() {
	var all []*entry
	for _, e := range z.table.workers {
		if e.resources.resizing && e.asking == nil {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *entry) int {
		switch {
		case admission.ResizeBefore(a.source, b.source, a.resources.pod, b.resources.pod):
			return -1
		case admission.ResizeBefore(b.source, a.source, b.resources.pod, a.resources.pod):
			return 1
		}
		return 0
	})
	for _, e := range all {
		z.resize(e)
	}
}

// resize allocates what a pod asks for, or says why not.
func (z *resizer) resize(e *entry) {
	pod, node := e.source, z.cfg.Node()
	r := &e.resources
	swappable := func(pod *corev1.Pod, c *corev1.Container) bool { return spec.MaySwap(pod, c, node) }
	others, ending := z.table.others(pod.UID)
	others = append(others, ending...)
	pending := admission.AdmitResize(pod, r.pod, node.Allocatable, others, swappable, staticResources(node.Managers))
	old := r.pending
	switch {
	case pending == nil:
		r.resize(pod)
		z.event(pod, corev1.EventTypeNormal, "ResizeStarted", "Pod resize started", "")
	case old != nil && *pending == *old:
		return
	case old == nil || old.Reason != pending.Reason || old.Generation != pending.Generation:
		z.event(pod, corev1.EventTypeWarning, "Resize"+pending.Reason, "Pod resize "+pending.Reason, pending.Message)
	}
	r.pending = pending
	z.workers.allocations.save(pod, r.allocated)
	z.workers.send(e)
}

func (z *resizer) event(pod *corev1.Pod, eventType, reason, what, trouble string) {
	summary := resizeSummary(pod, pod.Generation, trouble)
	z.cfg.Events.PodEvent(pod, "", eventType, reason, what+": "+summary)
}

// staticResources returns the resources that Guaranteed pods have for themselves.
func staticResources(m spec.Managers) (all []admission.Static) {
	if m.StaticCPU {
		all = append(all, admission.StaticCPU)
	}
	if m.StaticMemory {
		all = append(all, admission.StaticMemory)
	}
	return all
}

// resizeSummary is the kubelet's form of what a resize is about.
func resizeSummary(pod *corev1.Pod, generation int64, trouble string) string {
	type container struct {
		Name      string                      `json:"name"`
		Resources corev1.ResourceRequirements `json:"resources"`
	}
	var summary struct {
		Inits      []container `json:"initContainers,omitempty"`
		Containers []container `json:"containers,omitempty"`
		Generation int64       `json:"generation"`
		Error      string      `json:"error,omitempty"`
	}
	summary.Generation, summary.Error = generation, trouble
	for role, c := range podutil.Containers(&pod.Spec) {
		switch role {
		case podutil.RoleInit, podutil.RoleSidecar:
			summary.Inits = append(summary.Inits, container{c.Name, c.Resources})
		case podutil.RoleApp:
			summary.Containers = append(summary.Containers, container{c.Name, c.Resources})
		}
	}
	text, _ := json.Marshal(summary) // strings and quantities always encode
	return string(text)
}
