package plan

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// beginningResize: what is granted is what is given, in place where the policy lets it be, and never while the pod's cgroup is too
// small for what its containers are to have.
func (ru *rules) beginningResize(w *world, s Step) {
	ru.forward(s)
	g := w.desired.Grant
	switch s := s.(type) {
	case Resize:
		want := g.Containers[s.Name]
		if s.To != want.Size {
			ru.breaks("%s, but it was granted %s", s, want.Size)
		}
		i := w.index(s.ID)
		if i < 0 || w.containers[i].State != ContainerRunning {
			ru.breaks("%s, which does not run", s)
			return
		}
		if ru.asksForRestart(&w.containers[i]) {
			ru.breaks("%s in place, though its policy wants it to restart for that", s)
		}
		ru.podHasRoom(w, s)
	case ResizePod:
		known := w.memory.PodSize // behind the truth where an answer was lost
		if s.To != w.podSize.Wider(g.Pod) && s.To != g.Pod.Normal() && (known == nil || s.To != known.Wider(g.Pod)) {
			ru.breaks("%s, but it was granted %s and has %s", s, g.Pod, w.podSize)
		}
		if s.To.Wider(*w.podSize) == s.To {
			return
		}
		for name := range g.Containers {
			if c := newest(w.containers, name); ru.running(c) && c.Size.Normal() != g.Containers[name].Size.Normal() {
				ru.breaks("%s before %s has what it was granted", s, c.ID)
			}
		}
	}
}

// podHasRoom: the pod's cgroup has at least the size that was granted to it.
func (ru *rules) podHasRoom(w *world, s Step) {
	if g := w.desired.Grant; g != nil && w.podSize != nil && w.podSize.Wider(g.Pod) != w.podSize.Normal() {
		ru.breaks("%s while the pod's cgroup is smaller than granted: %s", s, w.podSize)
	}
}

// running: the instance runs in the sandbox that counts.
func (ru *rules) running(c *Container) bool {
	boxes := ru.l.sandboxes
	return c != nil && c.State == ContainerRunning && len(boxes) > 0 && c.SandboxID == boxes[len(boxes)-1].ID && c.Size != nil
}

// asksForRestart: by its resize policy the container must be made anew, for it was made with other resources.
func (ru *rules) asksForRestart(c *Container) bool {
	g := ru.l.desired.Grant
	if g == nil || c.Made == nil {
		return false
	}
	return slices.ContainsFunc(ru.specs[c.Name].ResizePolicy, func(p corev1.ContainerResizePolicy) bool {
		return p.RestartPolicy == corev1.RestartContainer && !podutil.SameResources(*c.Made, g.Containers[c.Name].Resources, p.ResourceName)
	})
}

// replacedForReason: a container is stopped to be made anew only for another spec, or for a resize that asks for it.
func (ru *rules) replacedForReason(s StopContainer) {
	i := ru.l.index(s.ID)
	if i < 0 {
		return
	}
	c := &ru.l.containers[i]
	if c.Hash == ru.l.desired.Hashes[c.Name] && !ru.asksForRestart(c) {
		ru.breaks("%s to make it anew, though neither its spec nor a resize asks for that", s)
	}
}

// resourcesTrue: the status does not begin to say of a container that it has what it was granted before it has.
func (ru *rules) resourcesTrue(w *world, p *Plan) {
	g := w.desired.Grant
	if g == nil || ru.stopping() || podutil.IsTerminal(p.Status.Phase) {
		return
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			st, c, want := &list[i], newest(w.containers, list[i].Name), g.Containers[list[i].Name]
			if !ru.running(c) || st.State.Running == nil || st.Resources == nil || c.Size.Normal() == want.Size.Normal() {
				continue
			}
			if podutil.SameResources(*st.Resources, want.Resources) && !ru.saidBefore(st) {
				ru.breaks("%s is said to have what it was granted, %s, and has %s", c.ID, want.Size, c.Size)
			}
		}
	}
}

// saidBefore: the last status that was told or published says the same of the same instance. A runtime may still have changed its
// resources since, for an agent that is gone.
func (ru *rules) saidBefore(st *corev1.ContainerStatus) bool {
	before := &ru.l.desired.Pod.Status
	if told := ru.l.memory.Reported; told != nil {
		before = told
	}
	old := podutil.ContainerStatus(before, st.Name)
	return old != nil && old.ContainerID == st.ContainerID && old.Resources != nil &&
		podutil.SameResources(*old.Resources, *st.Resources)
}

// resizedAtRest: at rest every container and the pod's cgroup have what was granted, and the status tells of no resize but one
// that waits.
func (ru *rules) resizedAtRest() {
	l := ru.l
	g := l.desired.Grant
	if g == nil {
		return
	}
	for name, want := range g.Containers {
		if c := newest(l.containers, name); ru.running(c) && c.Size.Normal() != want.Size.Normal() {
			ru.breaks("at rest, and %s has %s, not %s as granted", c.ID, c.Size, want.Size)
		}
	}
	if has := l.podSize; has == nil || *has != g.Pod.Normal() {
		ru.breaks("at rest, and the pod's cgroup has %v, not %s as granted", has, g.Pod)
	}
	said := map[corev1.PodConditionType]string{}
	for _, c := range l.plan.Status.Conditions {
		said[c.Type] = c.Reason
	}
	if reason, progress := said[corev1.PodResizeInProgress]; progress {
		ru.breaks("at rest, and a resize is said to be in progress: %q", reason)
	}
	reason, waits := said[corev1.PodResizePending]
	if waits != (g.Pending != nil) || waits && reason != g.Pending.Reason {
		ru.breaks("at rest, and of a resize that waits is said %q, while the answer to it is %+v", reason, g.Pending)
	}
}
