package agent

import (
	"encoding/json"
	"errors"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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
	// burstable is what the pod counts for in the CPU shares of its class, in thousandths of a CPU.
	burstable int64
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
	r.burstable = burstableCPU(r.pod)
}

// resize allocates what the spec of the pod asks for.
func (r *podResources) resize(pod *corev1.Pod) {
	*r = podResources{allocated: desiredResources(pod), pod: pod, burstable: burstableCPU(pod)}
}

// grant converts the allocation to what plan needs to know.
func (r *podResources) grant(node *spec.Node) *podstate.Grant {
	g := &podstate.Grant{
		Generation: r.allocated.Generation,
		Pending:    r.pending,
		Pod:        spec.PodSize(r.pod, node),
		Containers: make(map[string]podstate.ContainerGrant, len(r.pod.Spec.Containers)),
		Requests:   resourcehelper.PodRequests(r.pod, resourcehelper.PodResourcesOptions{}),
		Limits:     resourcehelper.PodLimits(r.pod, resourcehelper.PodResourcesOptions{}),
	}
	for role, c := range podutil.Containers(&r.pod.Spec) {
		if role != podutil.RoleEphemeral {
			g.Containers[c.Name] = podstate.ContainerGrant{
				Size:      spec.SizeOf(spec.ContainerResources(r.pod, c, node)),
				Resources: spec.EffectiveResources(r.pod, c),
			}
		}
	}
	return g
}

// updateResources brings the resources of an entry in line with a new version of its pod.
func (s *Supervisor) updateResources(e *entry, pod *corev1.Pod) {
	if e.resources.allocated == nil {
		e.resources.allocated = s.loadAllocation(pod)
	}
	e.resources.update(pod, pod.DeletionTimestamp == nil && !finished(pod) && e.rejected == nil)
}

// loadAllocation returns what a pod holds that is new to this run of the agent. An earlier run has recorded it if it
// may differ from the spec. Without a record the API shows it, if the spec has changed while no agent was running.
func (s *Supervisor) loadAllocation(pod *corev1.Pod) *allocation {
	content, err := s.cfg.PodFiles.ReadPodFile(pod.UID, allocationFile)
	if err == nil {
		a := &allocation{}
		if err = json.Unmarshal(content, a); err == nil && len(a.Containers) > 0 {
			return a
		}
	}
	if !errors.Is(err, os.ErrNotExist) {
		s.log.Warn("cannot read the resources allocated to a pod, taking them from its status",
			"pod", pod.Namespace+"/"+pod.Name, "podUID", pod.UID, "err", err)
	}
	if pod.Status.StartTime == nil {
		return desiredResources(pod)
	}
	return allocationOf(pod)
}

// saveAllocation records what a pod holds.
func (s *Supervisor) saveAllocation(pod *corev1.Pod, a *allocation) {
	content, err := json.Marshal(a)
	if err == nil {
		err = s.cfg.PodFiles.WritePodFile(pod.UID, allocationFile, content)
	}
	if err != nil {
		s.log.Warn("cannot record the resources allocated to a pod; after a restart they are taken from its status",
			"pod", pod.Namespace+"/"+pod.Name, "podUID", pod.UID, "err", err)
	}
}

// resizes judges all pods that ask for other resources than they hold, in the order of admission.ResizeBefore.
func (s *Supervisor) resizes() {
	var all []*entry
	for _, e := range s.workers {
		if e.resources.resizing {
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
		s.resize(e)
	}
}

// resize allocates what a pod asks for, or says why not.
func (s *Supervisor) resize(e *entry) {
	pod, node, r := e.source, s.cfg.Node(), &e.resources
	swappable := func(pod *corev1.Pod, c *corev1.Container) bool { return spec.MaySwap(pod, c, node) }
	pending, old := admission.AdmitResize(pod, r.pod, node.Allocatable, s.others(pod.UID), swappable), r.pending
	switch {
	case pending == nil:
		r.resize(pod)
		s.resizeEvent(pod, corev1.EventTypeNormal, "ResizeStarted", "Pod resize started", "")
	case old != nil && *pending == *old:
		return
	case old == nil || old.Reason != pending.Reason || old.Generation != pending.Generation:
		s.resizeEvent(pod, corev1.EventTypeWarning, "Resize"+pending.Reason, "Pod resize "+pending.Reason, pending.Message)
	}
	r.pending = pending
	s.saveAllocation(pod, r.allocated)
	s.send(e)
}

// others returns the admitted pods that have not ended, with their allocated resources. It excludes orphaned pods even
// while they end: the scheduler counts their resources as free, and a refused replacement would fail for good. It also
// excludes preempted pods, which a critical pod replaces.
func (s *Supervisor) others(but types.UID) []*corev1.Pod {
	var all []*corev1.Pod
	for uid, e := range s.workers {
		if uid != but && s.set.Pods[uid] != nil && !e.preempted && e.active() {
			all = append(all, e.pod())
		}
	}
	return all
}

func (s *Supervisor) resizeEvent(pod *corev1.Pod, eventType, reason, what, trouble string) {
	summary := resizeSummary(pod, pod.Generation, trouble)
	s.cfg.Events.PodEvent(pod, "", eventType, reason, what+": "+summary)
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
