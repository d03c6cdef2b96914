package agent

import (
	"encoding/json"
	"errors"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/admission"
	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/agent/spec"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// grantFile is the file in a pod's directory that keeps what the pod holds, once that may differ from what its spec
// wants.
const grantFile = "granted-resources"

// holding is what a pod holds of the node's CPU and memory. It is the wish of its spec at some generation.
type holding struct {
	Generation int64                                  `json:"generation"`
	Containers map[string]corev1.ResourceRequirements `json:"containers"`
	// Pod are the resources of the pod as a whole (KEP-2837); nil where it has none.
	Pod *corev1.ResourceRequirements `json:"pod,omitempty"`
}

// wishOf is what the spec asks for.
func wishOf(pod *corev1.Pod) *holding {
	h := &holding{Generation: pod.Generation, Containers: map[string]corev1.ResourceRequirements{}}
	for role, c := range podutil.Containers(&pod.Spec) {
		if role != podutil.RoleEphemeral {
			h.Containers[c.Name] = only(c.Resources)
		}
	}
	if r := pod.Spec.Resources; r != nil {
		all := only(*r)
		h.Pod = &all
	}
	return h
}

// only leaves CPU and memory.
func only(r corev1.ResourceRequirements) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: onlyList(r.Requests), Limits: onlyList(r.Limits)}
}

func onlyList(list corev1.ResourceList) corev1.ResourceList {
	var out corev1.ResourceList
	for _, name := range podutil.ComputeResources {
		if q, ok := list[name]; ok {
			if out == nil {
				out = corev1.ResourceList{}
			}
			out[name] = q
		}
	}
	return out
}

// apply is the pod with what it holds in place of what it wants; the pod itself where that is the same.
func (h *holding) apply(pod *corev1.Pod) *corev1.Pod {
	out := pod
	own := func() *corev1.PodSpec {
		if out == pod {
			shallow := *pod
			shallow.Spec = podutil.CloneContainers(&pod.Spec)
			out = &shallow
		}
		return &out.Spec
	}
	for _, c := range podutil.Containers(&pod.Spec) {
		if has, ok := h.Containers[c.Name]; ok && !podutil.SameResources(has, c.Resources) {
			_, changed := podutil.Container(own(), c.Name)
			changed.Resources = merged(c.Resources, has)
		}
	}
	if r := pod.Spec.Resources; r != nil && h.Pod != nil && !podutil.SameResources(*h.Pod, *r) {
		all := merged(*r, *h.Pod)
		own().Resources = &all
	}
	return out
}

// merged is r with CPU and memory of has.
func merged(r, has corev1.ResourceRequirements) corev1.ResourceRequirements {
	put := func(list, has corev1.ResourceList) corev1.ResourceList {
		out := corev1.ResourceList{}
		for name, q := range list {
			if !slices.Contains(podutil.ComputeResources[:], name) {
				out[name] = q
			}
		}
		for name, q := range has {
			out[name] = q
		}
		if len(out) == 0 {
			return nil
		}
		return out
	}
	r.Requests, r.Limits = put(r.Requests, has.Requests), put(r.Limits, has.Limits)
	return r
}

// heldAtFirst is what a pod holds of which this life of the agent has heard for the first time. An earlier life has
// kept it where it may differ from the spec; else the API shows it, if the spec has changed while no agent was there.
func (s *Supervisor) heldAtFirst(pod *corev1.Pod) *holding {
	if pod.Status.StartTime == nil {
		return wishOf(pod)
	}
	content, err := s.hands.PodFS.ReadPodFile(pod.UID, grantFile)
	if err == nil {
		h := &holding{}
		if err = json.Unmarshal(content, h); err == nil && len(h.Containers) > 0 {
			return h
		}
	}
	if !errors.Is(err, os.ErrNotExist) {
		s.log.Warn("cannot read what was granted to a pod; going by its status", "pod", pod.Namespace+"/"+pod.Name, "err", err)
	}
	return shownBy(pod)
}

// shownBy is what the status of a pod shows of what it holds.
func shownBy(pod *corev1.Pod) *holding {
	h := wishOf(pod)
	if pod.Status.ObservedGeneration >= pod.Generation {
		return h // the agent has seen this very spec
	}
	h.Generation = pod.Status.ObservedGeneration
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			if c := &list[i]; c.Resources != nil && c.State.Running != nil {
				h.Containers[c.Name] = only(*c.Resources)
			}
		}
	}
	if shown := pod.Status.Resources; h.Pod != nil && shown != nil {
		for name := range h.Pod.Requests {
			h.Pod.Requests[name] = shown.Requests[name]
		}
		for name := range h.Pod.Limits {
			h.Pod.Limits[name] = shown.Limits[name]
		}
	}
	return h
}

// grantTo brings an entry's order in line with what its pod holds and wants.
func (s *Supervisor) grantTo(e *entry, pod *corev1.Pod) {
	if e.held == nil {
		e.held = s.heldAtFirst(pod)
	}
	granted := e.held.apply(pod)
	e.wants = granted != pod && pod.DeletionTimestamp == nil && !finished(pod) && e.order.Rejected == nil
	if !e.wants && granted == pod {
		e.held.Generation = max(e.held.Generation, pod.Generation)
	}
	var pending *plan.PendingResize
	if g := e.order.Grant; e.wants && g != nil {
		pending = g.Pending
	}
	e.order.Grant = s.hands.grant(granted, e.held.Generation, pending)
	e.granted = granted
}

// resizes looks at all pods that want other resources than they hold, the most deserving first.
func (s *Supervisor) resizes() {
	var all []*entry
	for _, e := range s.workers {
		if e.wants {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *entry) int {
		switch {
		case admission.ResizeBefore(a.source, b.source, a.granted, b.granted):
			return -1
		case admission.ResizeBefore(b.source, a.source, b.granted, a.granted):
			return 1
		}
		return 0
	})
	for _, e := range all {
		s.resize(e)
	}
}

// resize gives a pod what it wants, or says why not.
func (s *Supervisor) resize(e *entry) {
	pod, node := e.source, s.hands.Node()
	swappable := func(pod *corev1.Pod, c *corev1.Container) bool { return spec.MaySwap(pod, c, node) }
	pending := admission.AdmitResize(pod, e.granted, node.Allocatable, s.others(pod.UID), swappable)
	old := e.order.Grant
	if pending != nil && old.Pending != nil && *pending == *old.Pending {
		return
	}
	if pending == nil {
		e.held, e.granted, e.wants = wishOf(pod), pod, false
		s.resizeEvent(pod, corev1.EventTypeNormal, "ResizeStarted", "Pod resize started", "", pod.Generation)
	} else if old.Pending == nil || old.Pending.Reason != pending.Reason || old.Pending.Generation != pending.Generation {
		s.resizeEvent(pod, corev1.EventTypeWarning, "Resize"+pending.Reason, "Pod resize "+pending.Reason, pending.Message, pod.Generation)
	}
	s.keep(pod, e.held)
	e.order.Grant = s.hands.grant(e.granted, e.held.Generation, pending)
	s.send(e)
}

// keep writes down what a pod holds.
func (s *Supervisor) keep(pod *corev1.Pod, h *holding) {
	content, err := json.Marshal(h)
	if err == nil {
		err = s.hands.PodFS.WritePodFile(pod.UID, grantFile, content)
	}
	if err != nil {
		s.log.Warn("cannot keep what was granted to a pod; after a restart its status tells", "pod", pod.Namespace+"/"+pod.Name, "err", err)
	}
}

// others are the admitted pods that have not ended, with what they hold. Orphaned pods are excluded even while they
// end: the scheduler has already given away what they held, and to refuse the replacement would be final. So are
// preempted pods, whose place a critical pod has.
func (s *Supervisor) others(but types.UID) []*corev1.Pod {
	var all []*corev1.Pod
	for uid, e := range s.workers {
		if uid != but && s.set.Pods[uid] != nil && e.order.Rejected == nil && !e.preempted && !finished(e.order.Pod) {
			all = append(all, e.order.Pod)
		}
	}
	return all
}

func (s *Supervisor) resizeEvent(pod *corev1.Pod, eventType, reason, what, trouble string, generation int64) {
	s.hands.Events.Event(podReference(pod, ""), eventType, reason, what+": "+resizeSummary(pod, generation, trouble))
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

// grant is what a pod with these resources may use, in the terms of plan.
func (h *Hands) grant(pod *corev1.Pod, generation int64, pending *plan.PendingResize) *plan.Grant {
	node := h.Node()
	g := &plan.Grant{Generation: generation, Pending: pending, Pod: podSize(pod, node),
		Containers: make(map[string]plan.ContainerGrant, len(pod.Spec.Containers)),
		Requests:   resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}),
		Limits:     resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})}
	for role, c := range podutil.Containers(&pod.Spec) {
		if role != podutil.RoleEphemeral {
			g.Containers[c.Name] = plan.ContainerGrant{Size: sizeOf(spec.ContainerResources(pod, c, node, false)),
				Resources: spec.EffectiveResources(pod, c)}
		}
	}
	return g
}

func sizeOf(r *runtimeapi.LinuxContainerResources) plan.Size {
	return plan.Size{Shares: r.GetCpuShares(), Quota: r.GetCpuQuota(), Period: r.GetCpuPeriod(), Memory: r.GetMemoryLimitInBytes()}
}

// podSize is the size of the pod's own cgroup.
func podSize(pod *corev1.Pod, node *spec.Node) plan.Size {
	want := spec.PodCgroup(pod, node, false)
	size := plan.Size{Shares: want.CPUShares}
	if want.CPUQuota != nil {
		size.Quota, size.Period = *want.CPUQuota, *want.CPUPeriod
	}
	if want.Memory != nil {
		size.Memory = *want.Memory
	}
	return size
}
