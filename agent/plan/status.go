package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// status is the pod's status as the kubelet would publish it for the same facts. What the API shows already stays where
// the facts do not say otherwise, and nothing steps back: not the phase, not the start time, not the end of a container.
func (v *view) status(p *Plan) corev1.PodStatus {
	api, shown := &v.d.Pod.Status, v.old
	st := corev1.PodStatus{
		ObservedGeneration:                   max(v.d.Pod.Generation, shown.ObservedGeneration),
		StartTime:                            v.startTime(),
		QOSClass:                             podutil.QOS(v.d.Pod),
		NominatedNodeName:                    api.NominatedNodeName,
		ResourceClaimStatuses:                api.ResourceClaimStatuses,
		ExtendedResourceClaimStatus:          api.ExtendedResourceClaimStatus,
		NodeAllocatableResourceClaimStatuses: api.NodeAllocatableResourceClaimStatuses,
	}
	if v.d.Rejected != nil && !v.everRan() {
		v.rejected(&st)
		return st
	}
	v.containerStatuses(&st)
	v.addresses(&st)
	v.podResources(&st)
	calm := v.calm(p)
	st.Phase, _, _ = v.phase(&st, calm, false)
	v.conditions(&st, calm)
	if p.Released {
		v.closeContainers(&st)
	}
	phase, reason, message := v.phase(&st, calm, p.Released)
	// The world hears of the end only when nothing can run any more and the network is back; and no resource claim is prepared, for the
	// control plane gives its devices away then.
	if !calm && podutil.IsTerminal(phase) && !podutil.IsTerminal(shown.Phase) {
		phase, reason, message = shown.Phase, shown.Reason, shown.Message
	}
	st.Phase, st.Reason, st.Message = cmp.Or(phase, corev1.PodPending), reason, message
	return st
}

func (v *view) startTime() *metav1.Time {
	if t := v.old.StartTime; !t.IsZero() {
		return t
	}
	t := seconds(v.o.Now)
	return &t
}

// seconds is a time as the API keeps it.
func seconds(t time.Time) metav1.Time {
	if t.IsZero() {
		return metav1.Time{}
	}
	return metav1.NewTime(t.Truncate(time.Second))
}

// everRan: there is or was an instance of one of the pod's containers.
func (v *view) everRan() bool {
	for i := range v.slots {
		if v.slots[i].last != nil {
			return true
		}
	}
	return false
}

// rejected is the whole status of a pod that admission refused.
func (v *view) rejected(st *corev1.PodStatus) {
	st.Phase, st.Reason, st.Message = corev1.PodFailed, v.d.Rejected.Reason, rejectedMessage(v.d.Rejected)
	for _, c := range v.d.Pod.Status.Conditions {
		if !ours(c.Type) {
			st.Conditions = append(st.Conditions, c)
		}
	}
}

func rejectedMessage(r *Rejection) string { return "Pod was rejected: " + r.Message }

// calm: the pod is to end, and nothing of it runs, may yet start, or holds the network or resource claims.
func (v *view) calm(p *Plan) bool {
	if v.stop == nil || len(p.Cancel) > 0 || v.sandboxHeld() || v.o.ClaimsHeld {
		return false
	}
	for _, step := range v.o.Memory.InFlight {
		if starts(step) {
			return false
		}
	}
	for i := range v.o.Containers {
		if alive(&v.o.Containers[i]) {
			return false
		}
	}
	return true
}

// phase is the pod's phase, with the reason and message that belong to it.
func (v *view) phase(st *corev1.PodStatus, calm, released bool) (phase corev1.PodPhase, reason, message string) {
	shown := v.old
	phase = v.phaseByContainers(st, calm)
	switch {
	case podutil.IsTerminal(shown.Phase):
		phase = shown.Phase
	case v.d.Rejected != nil:
		return corev1.PodFailed, v.d.Rejected.Reason, rejectedMessage(v.d.Rejected)
	case v.stop != nil && v.stop.Reason == ReasonPreempting && phase == corev1.PodSucceeded:
		return phase, "", "" // its containers have done their work, or ended well when they were told to
	case v.stop != nil && v.stop.Reason != "":
		return corev1.PodFailed, v.stop.Reason, v.stop.Message
	case released && !podutil.IsTerminal(phase) && !podutil.IsStatic(v.d.Pod):
		phase = corev1.PodFailed
	case v.stop == nil && podutil.IsTerminal(phase):
		phase = shown.Phase // the plan goes on, whatever the statuses look like
	}
	if phase == shown.Phase {
		return phase, shown.Reason, shown.Message
	}
	return phase, "", ""
}

// tally counts the container statuses that decide about the phase.
type tally struct {
	running, waiting, stopped, succeeded, final int
	pendingInit, pendingSidecar, failedInit     int
}

// phaseByContainers derives the phase from the containers' statuses, as the kubelet's getPhase does.
func (v *view) phaseByContainers(st *corev1.PodStatus, calm bool) corev1.PodPhase {
	t, initialized := v.count(st)
	switch {
	case t.failedInit > 0:
		return corev1.PodFailed
	case t.pendingInit > 0, t.pendingSidecar > 0 && !initialized, t.waiting > 0:
		return corev1.PodPending
	case t.running > 0:
		return corev1.PodRunning
	case t.stopped == 0:
		return corev1.PodPending
	case t.stopped != t.final && (!calm || podutil.IsStatic(v.d.Pod)):
		return corev1.PodRunning
	case t.stopped == t.succeeded:
		return corev1.PodSucceeded
	}
	return corev1.PodFailed
}

// count sums up the statuses. initialized: an app container has been made in the current sandbox.
func (v *view) count(st *corev1.PodStatus) (t tally, initialized bool) {
	for i := range v.slots {
		s := &v.slots[i]
		switch s.role {
		case podutil.RoleInit:
			v.countInit(&t, s, podutil.StatusIn(st.InitContainerStatuses, s.spec.Name))
		case podutil.RoleSidecar:
			countSidecar(&t, podutil.StatusIn(st.InitContainerStatuses, s.spec.Name))
		case podutil.RoleApp:
			v.countApp(&t, s, podutil.StatusIn(st.ContainerStatuses, s.spec.Name))
			initialized = initialized || s.here
		}
	}
	return t, initialized
}

// endOf is how a container ended that does not run now; nil for one that runs or never ran.
func endOf(c *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	if c.State.Waiting != nil {
		return c.LastTerminationState.Terminated
	}
	return c.State.Terminated
}

func (v *view) countInit(t *tally, s *slot, c *corev1.ContainerStatus) {
	end := endOf(c)
	switch {
	case end == nil:
		t.pendingInit++
	case end.ExitCode != 0 && !v.restartsAfter(s, end.ExitCode):
		t.failedInit++
	}
}

func countSidecar(t *tally, c *corev1.ContainerStatus) {
	switch {
	case c.State.Running != nil:
		t.running++
		if c.Started == nil || !*c.Started {
			t.pendingSidecar++
		}
	case endOf(c) == nil:
		t.pendingSidecar++
		t.waiting++
	}
}

func (v *view) countApp(t *tally, s *slot, c *corev1.ContainerStatus) {
	end := endOf(c)
	switch {
	case c.State.Running != nil:
		t.running++
		return
	case end == nil:
		t.waiting++
		return
	}
	t.stopped++
	if !v.restartsAfter(s, end.ExitCode) {
		t.final++
	}
	if c.State.Terminated != nil && end.ExitCode == 0 {
		t.succeeded++
	}
}

// restartsAfter is restarts for an exit code that a status shows.
func (v *view) restartsAfter(s *slot, exitCode int32) bool {
	replaced := s.last != nil && (v.o.Memory.Killed[s.last.ID].Replaces() || s.last.Reason == ReasonRestartingAll)
	return replaced || v.resetting && s.role != podutil.RoleEphemeral || podutil.ShouldRestart(&v.d.Pod.Spec, s.spec, s.role, exitCode)
}

// addresses fills in the addresses of the pod and its node. A pod without a ready sandbox keeps the address it had.
func (v *view) addresses(st *corev1.PodStatus) {
	shown := v.old
	st.HostIP, st.HostIPs = shown.HostIP, shown.HostIPs
	if ips := v.o.Node.HostIPs; len(ips) > 0 {
		st.HostIP, st.HostIPs = ips[0], nil
		for _, ip := range ips[:min(2, len(ips))] {
			st.HostIPs = append(st.HostIPs, corev1.HostIP{IP: ip})
		}
	}
	if v.d.Pod.Spec.HostNetwork {
		v.hostAddresses(st)
		return
	}
	if len(v.sandboxes) > 0 && v.sandboxes[0].Ready {
		for _, ip := range v.podIPs(v.sandboxes[0].IPs) {
			st.PodIPs = append(st.PodIPs, corev1.PodIP{IP: ip})
		}
	} else {
		st.PodIPs = shown.PodIPs
	}
	if len(st.PodIPs) > 0 {
		st.PodIP = st.PodIPs[0].IP
	}
}

// hostAddresses: a pod on the host's network has the node's addresses. The first stays once it is known; the second may
// come later.
func (v *view) hostAddresses(st *corev1.PodStatus) {
	st.PodIP, st.PodIPs = v.old.PodIP, v.old.PodIPs
	ips := v.o.Node.HostIPs
	if st.PodIP == "" && len(ips) > 0 {
		st.PodIP, st.PodIPs = ips[0], []corev1.PodIP{{IP: ips[0]}}
	}
	if len(ips) == 2 && len(st.PodIPs) == 1 && ipv6(st.PodIPs[0].IP) != ipv6(ips[1]) {
		st.PodIPs = append(slices.Clip(st.PodIPs), corev1.PodIP{IP: ips[1]})
	}
}

// podIPs brings the runtime's addresses into the order of the node's families, one of each, in their usual spelling.
func (v *view) podIPs(all []string) []string {
	first6 := len(v.o.Node.HostIPs) > 0 && ipv6(v.o.Node.HostIPs[0])
	var found []string
	for _, want6 := range []bool{first6, !first6} {
		for _, ip := range all {
			if a, err := netip.ParseAddr(ip); err == nil && ipv6(ip) == want6 {
				found = append(found, a.Unmap().String())
				break
			}
		}
	}
	return found
}

// ipv6 tells the family of an address.
func ipv6(ip string) bool {
	a, err := netip.ParseAddr(ip)
	return err == nil && a.Unmap().Is6()
}

// podName is a pod as the kubelet names it in messages.
func podName(pod *corev1.Pod) string {
	return pod.Name + "_" + pod.Namespace + "(" + string(pod.UID) + ")"
}
