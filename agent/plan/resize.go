package plan

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Size is what the kernel is told of CPU and memory, in the terms of the CRI's LinuxContainerResources. 0 is no bound.
type Size struct {
	Shares int64 // CPU weight, 1024 a CPU
	Quota  int64 // µs of CPU time in a Period
	Period int64 // µs
	Memory int64 // bytes
}

// Grant is what of its resources a pod may use now (KEP-1287). Desired.Pod has the same resources in its spec.
type Grant struct {
	// Generation is that of the spec which asked for them.
	Generation int64
	// Containers holds by name what containers may use, init containers and sidecars among them; Pod is the size of the
	// pod's own cgroup.
	Containers map[string]ContainerGrant
	Pod        Size
	// Requests and Limits are those of the pod as a whole.
	Requests, Limits corev1.ResourceList
	// Pending is a later wish that is not granted; nil where there is none.
	Pending *PendingResize
}

// ContainerGrant is what one container may use.
type ContainerGrant struct {
	Size Size
	// Resources are CPU and memory alone; a limit that the container lacks is the pod's.
	Resources corev1.ResourceRequirements
}

// PendingResize says why a wish for other resources is not granted.
type PendingResize struct {
	Generation int64
	// Reason is Deferred or Infeasible.
	Reason  string
	Message string
}

// normal brings sizes that mean the same into one form.
func (s Size) normal() Size {
	s.Shares, s.Quota, s.Memory = max(0, s.Shares), max(0, s.Quota), max(0, s.Memory)
	if s.Quota == 0 {
		s.Period = 0
	}
	return s
}

// wider is the size in which both s and t fit.
func (s Size) wider(t Size) Size {
	s, t = s.normal(), t.normal()
	out := Size{Shares: max(s.Shares, t.Shares)}
	if s.Memory > 0 && t.Memory > 0 {
		out.Memory = max(s.Memory, t.Memory)
	}
	switch {
	case s.Quota == 0 || t.Quota == 0:
	case s.Quota*t.Period >= t.Quota*s.Period:
		out.Quota, out.Period = s.Quota, s.Period
	default:
		out.Quota, out.Period = t.Quota, t.Period
	}
	return out
}

func (s Size) String() string {
	return fmt.Sprintf("shares %d, quota %d/%d, memory %d", s.Shares, s.Quota, s.Period, s.Memory)
}

// resize plans what brings a running pod to the resources that it was granted. Its own cgroup grows before its containers
// do, and shrinks after them; until the pod is prepared its size is not known.
func (v *view) resize(p *Plan) {
	if v.d.Grant == nil || !v.o.Memory.Prepared {
		return
	}
	if wider, grows := v.podGrows(); grows {
		v.step(p, ResizePod{To: wider})
		return
	}
	for i := range v.slots {
		if s := &v.slots[i]; v.resizesInPlace(s) {
			g := v.d.Grant.Containers[s.spec.Name]
			v.step(p, Resize{ID: s.last.ID, Name: s.spec.Name, To: g.Size, LowersMemory: v.lowersMemory(s)})
		}
	}
	if pod := v.o.Memory.PodSize; !v.containersChange() && pod != nil && pod.normal() != v.d.Grant.Pod.normal() {
		v.step(p, ResizePod{To: v.d.Grant.Pod.normal(), LowersMemory: lower(v.d.Grant.Pod.Memory, pod.Memory)})
	}
}

// podGrows: the pod's cgroup must grow before anything in it may. While a change of its size is under way, or has failed, it may be as
// small as that would make it.
func (v *view) podGrows() (Size, bool) {
	pod := v.o.Memory.PodSize
	if v.d.Grant == nil || pod == nil {
		return Size{}, false
	}
	wider := pod.wider(v.d.Grant.Pod)
	return wider, wider != pod.normal() || v.podUnsettled() && v.containersChange()
}

// podUnsettled: what became of the last change of the pod's size is not known.
func (v *view) podUnsettled() bool {
	_, failed := v.o.Memory.Failures[ResizePod{}.Key()]
	return failed || v.inFlight(ResizePod{})
}

// containersChange: a running container has other resources than it was granted.
func (v *view) containersChange() bool {
	for i := range v.slots {
		if s := &v.slots[i]; v.resizeRestarts(s) || v.resizesInPlace(s) {
			return true
		}
	}
	return false
}

// grantOf is what a running instance may use; false where nothing is known or nothing is to be changed.
func (v *view) grantOf(s *slot) (ContainerGrant, bool) {
	if v.d.Grant == nil || s.role == podutil.RoleEphemeral || s.last == nil || !s.here || s.last.State != ContainerRunning {
		return ContainerGrant{}, false
	}
	g, ok := v.d.Grant.Containers[s.spec.Name]
	return g, ok
}

// actual are the resources that an instance was made with or last resized to; nil where that is not known.
func (v *view) actual(s *slot) *corev1.ResourceRequirements {
	if r, ok := v.o.Memory.Resized[s.last.ID]; ok {
		return &r
	}
	return s.last.Made
}

// resizeRestarts: the container's resize policy wants a new instance for what has changed.
func (v *view) resizeRestarts(s *slot) bool {
	g, ok := v.grantOf(s)
	if !ok {
		return false
	}
	has := v.actual(s)
	for _, policy := range s.spec.ResizePolicy {
		if has != nil && policy.RestartPolicy == corev1.RestartContainer && !podutil.SameResources(*has, g.Resources, policy.ResourceName) {
			return true
		}
	}
	return false
}

// resizesInPlace: a running instance has other resources than it was granted, and can be given them as it is.
func (v *view) resizesInPlace(s *slot) bool {
	g, ok := v.grantOf(s)
	if !ok || v.resizeRestarts(s) {
		return false
	}
	if has := v.actual(s); has != nil && !podutil.SameResources(*has, g.Resources) {
		return true
	}
	// What has been set once is not set again, should the runtime tell it in other numbers.
	_, set := v.o.Memory.Resized[s.last.ID]
	return !set && s.last.Size != nil && s.last.Size.normal() != g.Size.normal()
}

// lowersMemory: the new limit is below the one in force.
func (v *view) lowersMemory(s *slot) bool {
	g := v.d.Grant.Containers[s.spec.Name]
	return s.last.Size == nil || lower(g.Size.Memory, s.last.Size.Memory)
}

// lower: a limit is tighter than another; 0 is none.
func lower(next, now int64) bool { return next > 0 && (now <= 0 || next < now) }

// resizing: not everything that runs has the resources that were granted.
func (v *view) resizing() bool {
	if v.d.Grant == nil {
		return false
	}
	if pod := v.o.Memory.PodSize; pod != nil && pod.normal() != v.d.Grant.Pod.normal() {
		return true
	}
	return v.containersChange()
}

// resizeFailure is what the last attempt at a resize came to; empty where nothing has failed.
func (v *view) resizeFailure() string {
	if f, failed := v.o.Memory.Failures[ResizePod{}.Key()]; failed {
		return f.Message
	}
	for i := range v.slots {
		if s := &v.slots[i]; s.last != nil {
			if f, failed := v.o.Memory.Failures[Resize{ID: s.last.ID}.Key()]; failed {
				return f.Message
			}
		}
	}
	return ""
}

// resizeConditions tell of a resize that waits and of one under way. There are none of them otherwise.
func (v *view) resizeConditions(st *corev1.PodStatus) {
	if v.d.Grant == nil || podutil.IsTerminal(st.Phase) || v.stop != nil {
		return
	}
	if w := v.d.Grant.Pending; w != nil {
		st.Conditions = append(st.Conditions, v.resizeCondition(corev1.PodResizePending, w.Generation, w.Reason, w.Message))
	}
	if v.resizing() {
		reason, message := "", v.resizeFailure()
		if message != "" {
			reason = corev1.PodReasonError
		}
		st.Conditions = append(st.Conditions, v.resizeCondition(corev1.PodResizeInProgress, v.d.Grant.Generation, reason, message))
	}
}

func (v *view) resizeCondition(t corev1.PodConditionType, generation int64, reason, message string) corev1.PodCondition {
	c := corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, ObservedGeneration: generation, Reason: reason, Message: message,
		LastTransitionTime: seconds(v.o.Now)}
	for i := range v.old.Conditions {
		if old := &v.old.Conditions[i]; old.Type == t && old.Reason == reason {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	return c
}

// containerResources shows what an instance has: what was granted, or, until that is so, what it had. Nil where an earlier life of the
// agent has resized it and nobody has heard to what.
func (v *view) containerResources(s *slot) *corev1.ResourceRequirements {
	if !v.resizeRestarts(s) && !v.resizesInPlace(s) {
		return &s.spec.Resources
	}
	if old := s.shown; old != nil && old.Resources != nil && podutil.RuntimeID(old.ContainerID) == s.last.ID {
		return old.Resources
	}
	g, _ := v.grantOf(s)
	if has := v.actual(s); has != nil && !podutil.SameResources(*has, g.Resources) {
		return has
	}
	return nil
}

// grantedResources shows what the pod holds as a whole. Limits of the running pod are those that its cgroup has.
func (v *view) grantedResources(st *corev1.PodStatus) {
	g := v.d.Grant
	st.AllocatedResources = g.Requests
	st.Resources = &corev1.ResourceRequirements{Requests: g.Requests, Limits: g.Limits}
	if v.old.Phase != corev1.PodRunning {
		return
	}
	if v.resizing() && v.old.Resources != nil {
		st.Resources = v.old.Resources
		return
	}
	without := func(name corev1.ResourceName, bound int64) {
		if _, has := st.Resources.Limits[name]; has && bound <= 0 {
			st.Resources.Limits = maps.Clone(st.Resources.Limits)
			delete(st.Resources.Limits, name)
		}
	}
	without(corev1.ResourceCPU, g.Pod.Quota)
	without(corev1.ResourceMemory, g.Pod.Memory)
}

// podResources shows what the pod holds as a whole. It is worked out once for each generation of the spec.
func (v *view) podResources(st *corev1.PodStatus) {
	if v.d.Grant != nil {
		v.grantedResources(st)
		return
	}
	if told := v.o.Memory.Told; told != nil && told.ObservedGeneration == v.d.Pod.Generation && told.Resources != nil {
		st.AllocatedResources, st.Resources = told.AllocatedResources, told.Resources
		return
	}
	requests := resourcehelper.PodRequests(v.d.Pod, resourcehelper.PodResourcesOptions{})
	limits := resourcehelper.PodLimits(v.d.Pod, resourcehelper.PodResourcesOptions{})
	st.AllocatedResources = requests
	st.Resources = &corev1.ResourceRequirements{Requests: requests, Limits: limits}
}
