package plan

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// maySize gives a pod resources that can be changed while it runs, and some pods a resize policy. The allocation is
// stored on disk, so a crash of the agent does not lose it.
func (l *simRun) maySize() {
	if !chance(l.r, 6) {
		return
	}
	pod := l.desired.Pod
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, name := range podutil.ComputeResources {
				// The API refuses restarts for a resize in a pod that never restarts.
				if pod.Spec.RestartPolicy != corev1.RestartPolicyNever && chance(l.r, 4) {
					list[i].ResizePolicy = append(list[i].ResizePolicy,
						corev1.ContainerResizePolicy{ResourceName: name, RestartPolicy: corev1.RestartContainer})
				}
			}
		}
	}
	l.rules.knowPod(pod)
	l.allocate(1)
}

// requestResize changes the resources in the spec. The resize is allocated, deferred or infeasible. One that was not
// allocated may be allocated by a later call.
func (l *simRun) requestResize() {
	if l.desired.Allocation == nil {
		l.endSomehow()
		return
	}
	next := *l.desired.Pod
	next.Generation++
	l.desired.Pod = &next
	if chance(l.r, 3) {
		refused := *l.desired.Allocation
		refused.Pending = &podstate.PendingResize{Generation: next.Generation, Message: "not enough CPU",
			Reason: pick(l.r, corev1.PodReasonDeferred, corev1.PodReasonInfeasible)}
		l.desired.Allocation = &refused
		l.note("a resize is refused: %s", refused.Pending.Reason)
		return
	}
	l.allocate(next.Generation)
}

// beforeResize returns what instances had before their first resize, if another allocation follows this one.
func beforeResize(g *podstate.Allocation, all []podstate.Container) map[string]corev1.ResourceRequirements {
	if g == nil {
		return nil
	}
	before := map[string]corev1.ResourceRequirements{}
	for i := range all {
		c := &all[i]
		had, known := g.Before[c.ID]
		if !known {
			had = g.Containers[c.Name].Resources
		}
		before[c.ID] = had
	}
	return before
}

// allocate allocates new resources to the pod, also in its spec.
func (l *simRun) allocate(generation int64) {
	pod := *l.desired.Pod
	pod.Spec.InitContainers, pod.Spec.Containers = slices.Clone(pod.Spec.InitContainers), slices.Clone(pod.Spec.Containers)
	g := &podstate.Allocation{
		Generation: generation,
		Before:     beforeResize(l.desired.Allocation, l.containers),
		Containers: map[string]podstate.ContainerAllocation{},
	}
	limited := true
	var cpu, memory int64
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c, m := pick[int64](l.r, 100, 200, 400), pick[int64](l.r, 100, 200, 400)
			one := podstate.ContainerAllocation{Size: sizeFor(c, m), Resources: sized(c, m)}
			if chance(l.r, 8) {
				limited, one.Resources.Limits = false, nil
				one.Size = podstate.Size{Shares: one.Size.Shares}
			}
			cpu, memory = cpu+c, memory+m
			list[i].Resources, g.Containers[list[i].Name] = one.Resources, one
		}
	}
	spare := pick[int64](l.r, 0, 0, 50, 300) // of a pod that has resources as a whole (KEP-2837)
	all := sized(cpu+spare, memory+spare)
	g.Pod = sizeFor(cpu+spare, memory+spare)
	g.Requests, g.Limits = all.Requests, all.Limits
	if !limited && spare == 0 {
		g.Pod, g.Limits = podstate.Size{Shares: g.Pod.Shares}, nil
	}
	l.desired.Pod, l.desired.Allocation = &pod, g
	l.rules.knowPod(&pod)
	l.note("allocated: %+v in a pod with %s", g.Containers, g.Pod)
}

// diesWithAgent reports whether the agent does the step itself, so that the step ends when the agent is killed:
// changes of the pod's cgroup, records of its resource claims and the marker file of a reset.
func diesWithAgent(s podstate.Step) bool {
	switch s.(type) {
	case podstate.Prepare, podstate.PrepareClaims, podstate.UnprepareClaims, podstate.ResizePod, podstate.RemoveCgroup,
		podstate.MarkReset:
		return true
	}
	return false
}

// resizeFate decides how a resize ends. The agent changes cgroups itself, before the answer or never. If the runtime
// reports that it has changed a container's resources, that is true.
func (l *simRun) resizeFate(c *call) {
	if diesWithAgent(c.step) && c.effectAt.After(c.endAt) {
		c.effectAt = c.endAt
	}
	if c.effectAt.IsZero() && c.problem == nil {
		c.effectAt = c.endAt
	}
}

// setsSize reports whether the step sets resources of a container or of the pod.
func setsSize(s podstate.Step) bool {
	switch s.(type) {
	case podstate.Prepare, podstate.Resize, podstate.ResizePod:
		return true
	}
	return false
}

// resizeEffect changes the resources of a container or of the pod's cgroup. A runtime applies the updates of one
// container in the order of the calls, so an earlier call has no effect any more.
func (w *world) resizeEffect(c *call) *podstate.Problem {
	for _, other := range w.calls {
		if other == c {
			break
		}
		other.done = other.done || other.step.Key() == c.step.Key()
	}
	switch s := c.step.(type) {
	case podstate.ResizePod:
		if !w.cgroup {
			return &podstate.Problem{Message: "no such cgroup"}
		}
		w.podSize = ptr(s.To.Normal())
	case podstate.Resize:
		i := w.index(s.ID)
		if i < 0 || w.containers[i].State != podstate.ContainerRunning {
			return &podstate.Problem{Message: "container is not running"}
		}
		w.containers[i].Size = ptr(s.To)
	}
	return nil
}

// prepareEffect makes the pod's directory and its cgroup, which keeps the size that it has.
func (w *world) prepareEffect(c *call) {
	w.dir, w.cgroup = true, true
	if w.podSize == nil && c.allocation != nil {
		w.podSize = ptr(c.allocation.Pod.Normal())
	}
}

// madeWith records the resources with which a container was created: the runtime reports its size, an annotation its
// resources.
func madeWith(c *podstate.Container, g *podstate.Allocation) {
	if g == nil {
		return
	}
	if one, ok := g.Containers[c.Name]; ok {
		c.Size, c.Made = ptr(one.Size), ptr(one.Resources)
	}
}
