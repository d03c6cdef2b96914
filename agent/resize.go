package agent

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/admission"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// evaluateResizes decides about the pods that ask for other resources than they hold and whose workers get orders, in
// the order of admission.CompareResizes. What a kubelet that follows needs is on the disk before a worker learns of its
// resize.
func (d *dispatcher) evaluateResizes() {
	var all []*entry
	for _, e := range d.table.workers {
		if e.resources.Resizing() && !e.withheld() {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *entry) int {
		return admission.CompareResizes(a.source, b.source, a.resources.Pod(), b.resources.Pod())
	})
	var decided []*entry
	for _, e := range all {
		if d.resize(e) {
			decided = append(decided, e)
		}
	}
	d.allocations.Flush()
	for _, e := range decided {
		d.send(e)
	}
}

// resize allocates what a pod asks for, or says why not. It reports whether anything is new.
func (d *dispatcher) resize(e *entry) (decided bool) {
	pod, node := e.source, d.cfg.Node()
	r := &e.resources
	swappable := func(pod *corev1.Pod, c *corev1.Container) bool { return spec.MaySwap(pod, c, node) }
	others, ending := d.table.others(pod.UID)
	others = append(others, ending...)
	pending := admission.AdmitResize(pod, r.Pod(), node.Allocatable, others, swappable, staticResources(node.Managers))
	if refused := d.cfg.Rejection(pod); pending == nil && refused != nil {
		pending = &podstate.PendingResize{
			Generation: pod.Generation,
			Reason:     corev1.PodReasonDeferred,
			Message:    refused.Message,
		}
	}
	old := r.Pending()
	switch {
	case pending == nil:
		d.cfg.resizeEvent(pod, pod.Generation, corev1.EventTypeNormal, "ResizeStarted", "Pod resize started", "")
	case old != nil && *pending == *old:
		return false
	case old == nil || old.Reason != pending.Reason || old.Generation != pending.Generation:
		d.cfg.resizeEvent(pod, pod.Generation, corev1.EventTypeWarning, "Resize"+pending.Reason,
			"Pod resize "+pending.Reason, pending.Message)
	}
	d.allocations.Decide(r, pod, pending)
	return true
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

// resizeEvent records an event about the resize that a generation of the spec asks for, in the kubelet's form. trouble
// is why it is not done, or empty.
func (c *Config) resizeEvent(pod *corev1.Pod, generation int64, eventType, reason, what, trouble string) {
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
	for role, c := range podutil.ContainersWithResources(&pod.Spec) {
		if one := (container{c.Name, c.Resources}); role == podutil.RoleApp {
			summary.Containers = append(summary.Containers, one)
		} else {
			summary.Inits = append(summary.Inits, one)
		}
	}
	text, _ := json.Marshal(summary) // strings and quantities always encode
	c.Events.PodEvent(pod, "", eventType, reason, what+": "+string(text))
}
