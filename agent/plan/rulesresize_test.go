package plan

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// beginningResize checks that a resize sets the allocated resources, in place only if the policy allows it, and never
// while the pod's cgroup is too small for its containers.
func (ru *rules) beginningResize(w *world, s podstate.Step) {
	ru.forward(s)
	g := w.desired.Allocation
	switch s := s.(type) {
	case podstate.Resize:
		want := g.Containers[s.Name]
		if s.To != want.Size {
			ru.breaks("%s, but its allocation is %s", s, want.Size)
		}
		i := w.index(s.ID)
		if i < 0 || w.containers[i].State != podstate.ContainerRunning {
			ru.breaks("%s, which does not run", s)
			return
		}
		if ru.asksForRestart(&w.containers[i]) {
			ru.breaks("%s in place, although its policy requires a restart", s)
		}
		ru.podHasRoom(w, s)
		ru.shrinksFirst(w, s)
	case podstate.ResizePod:
		if s.To != w.podSize.Wider(g.Pod) && s.To != g.Pod.Normal() {
			ru.breaks("%s, but its allocation is %s and has %s", s, g.Pod, w.podSize)
		}
		if s.To.Wider(*w.podSize) == s.To {
			return
		}
		for name := range g.Containers {
			if c := podstate.Newest(w.containers, name); ru.running(c) && c.Size.Normal() != g.Containers[name].Size.Normal() {
				ru.breaks("%s before %s has what its allocation is", s, c.ID)
			}
		}
	}
}

// podHasRoom checks that the pod's cgroup has at least its allocated size, or has not been able to grow for a new
// instance.
func (ru *rules) podHasRoom(w *world, s podstate.Step) {
	g := w.desired.Allocation
	if g == nil || w.podSize == nil || w.podSize.Wider(g.Pod) == w.podSize.Normal() {
		return
	}
	f, failed := w.memory.Failures[podstate.ResizePod{}.Key()]
	if _, creates := s.(podstate.CreateContainer); creates && failed &&
		podstate.SameStep(f.Step, podstate.ResizePod{To: w.podSize.Wider(g.Pod)}) {
		return
	}
	ru.breaks("%s while the pod's cgroup is smaller than allocated: %s", s, w.podSize)
}

// shrinksFirst checks that a container gets more memory only when no other one has more than is allocated to it.
func (ru *rules) shrinksFirst(w *world, s podstate.Resize) {
	if c := &w.containers[w.index(s.ID)]; c.Size != nil && !lower(c.Size.Memory, s.To.Memory) {
		return
	}
	for name, want := range w.desired.Allocation.Containers {
		if c := podstate.Newest(w.containers, name); ru.running(c) && lower(want.Size.Memory, c.Size.Memory) {
			ru.breaks("%s before %s, which has %s, has its allocation %s", s, c.ID, c.Size, want.Size)
		}
	}
}

// running reports whether the instance runs in the current sandbox.
func (ru *rules) running(c *podstate.Container) bool {
	boxes := ru.l.sandboxes
	return c != nil && c.State == podstate.ContainerRunning && len(boxes) > 0 && c.SandboxID == boxes[len(boxes)-1].ID &&
		ru.l.usable(&boxes[len(boxes)-1]) && c.Size != nil
}

// otherSize reports whether a container that was made with these resources gets others now.
func (ru *rules) otherSize(name string, made *corev1.ResourceRequirements) bool {
	g := ru.l.desired.Allocation
	return g != nil && made != nil && !podutil.SameResources(*made, g.Containers[name].Resources)
}

// asksForRestart reports whether the container was created with other resources and its resize policy requires a
// restart.
func (ru *rules) asksForRestart(c *podstate.Container) bool {
	g := ru.l.desired.Allocation
	if g == nil || c.Made == nil {
		return false
	}
	return slices.ContainsFunc(ru.specs[c.Name].ResizePolicy, func(p corev1.ContainerResizePolicy) bool {
		return p.RestartPolicy == corev1.RestartContainer &&
			!podutil.SameResources(*c.Made, g.Containers[c.Name].Resources, p.ResourceName)
	})
}

// replacedForReason checks that a container is stopped and recreated only for a new spec, or for a resize that
// requires it, also if the reason goes while its preStop hook runs.
func (ru *rules) replacedForReason(s podstate.StopContainer) {
	i := ru.l.index(s.ID)
	if i < 0 {
		return
	}
	c := &ru.l.containers[i]
	if c.Hash == ru.l.desired.Hashes[c.Name] && !ru.asksForRestart(c) && !(ru.preStopped[s.ID] && ru.replaced(s.ID)) {
		ru.breaks("%s to recreate it, although neither its spec nor a resize requires that", s)
	}
}

// resourcesTrue checks that the status does not show the allocated resources of a container before it has them.
func (ru *rules) resourcesTrue(w *world, p *Plan) {
	g := w.desired.Allocation
	if g == nil || ru.stopping() || podutil.IsTerminal(p.Status.Phase) {
		return
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			st, c := &list[i], podstate.Newest(w.containers, list[i].Name)
			want := g.Containers[list[i].Name]
			if !ru.running(c) || st.State.Running == nil || st.Resources == nil || c.Size.Normal() == want.Size.Normal() {
				continue
			}
			if podutil.SameResources(*st.Resources, want.Resources) && !ru.saidBefore(st) {
				ru.breaks("%s is reported with its allocated resources %s, but has %s", c.ID, want.Size, c.Size)
			}
		}
	}
}

// saidBefore reports whether the last status shows the same resources of the same instance. The runtime may have
// changed them since, for an agent that was killed.
func (ru *rules) saidBefore(st *corev1.ContainerStatus) bool {
	before := &ru.l.desired.Pod.Status
	if reported := ru.l.memory.Reported; reported != nil {
		before = reported
	}
	old := podutil.ContainerStatus(before, st.Name)
	return old != nil && old.ContainerID == st.ContainerID && old.Resources != nil &&
		podutil.SameResources(*old.Resources, *st.Resources)
}

// resizedAtRest checks that at rest every container and the pod's cgroup have the allocated resources, and that the
// status shows no resize except a pending one.
func (ru *rules) resizedAtRest() {
	l := ru.l
	g := l.desired.Allocation
	if g == nil {
		return
	}
	for name, want := range g.Containers {
		if c := podstate.Newest(l.containers, name); ru.running(c) && c.Size.Normal() != want.Size.Normal() {
			ru.breaks("at rest, and %s has %s, not %s as allocated", c.ID, c.Size, want.Size)
		}
	}
	if has := l.podSize; has == nil || *has != g.Pod.Normal() {
		ru.breaks("at rest, and the pod's cgroup has %v, not %s as allocated", has, g.Pod)
	}
	said := map[corev1.PodConditionType]string{}
	for _, c := range l.plan.Status.Conditions {
		said[c.Type] = c.Reason
	}
	if reason, progress := said[corev1.PodResizeInProgress]; progress {
		ru.breaks("at rest, and a resize is reported as in progress: %q", reason)
	}
	reason, waits := said[corev1.PodResizePending]
	if waits != (g.Pending != nil) || waits && reason != g.Pending.Reason {
		ru.breaks("at rest, and a pending resize is reported as %q, want %+v", reason, g.Pending)
	}
}
