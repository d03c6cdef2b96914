package podstatus

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Reasons of pod conditions. They are the same as the kubelet's.
const (
	reasonContainersNotReady       = "ContainersNotReady"
	reasonSandboxNotReady          = "PodSandboxNotReady"
	reasonContainersNotInitialized = "ContainersNotInitialized"
	reasonReadinessGatesNotReady   = "ReadinessGatesNotReady"
	reasonPodCompleted             = "PodCompleted"
	reasonPodFailed                = "PodFailed"
	reasonResetStarted             = "RestartAllContainersStarted"
	messageResetStarted            = "container exited with restart policy rule"
	messagePreempted               = "Pod was preempted by Kubelet to accommodate a critical pod."
)

// foreignConditions copies the conditions of other owners unchanged. PodScheduled is added later.
func (b *builder) foreignConditions() {
	for _, c := range b.Pod.Status.Conditions {
		if !podutil.OwnsCondition(c.Type) && c.Type != corev1.PodScheduled {
			b.st.Conditions = append(b.st.Conditions, c)
		}
	}
}

// conditions fills in the pod's conditions. The phase of the status must be set before. The conditions of other owners
// come first.
func (b *builder) conditions() {
	b.st.Conditions = make([]corev1.PodCondition, 0, max(5, len(b.Pod.Status.Conditions)))
	b.foreignConditions()
	if b.quiescent && !podutil.IsTerminal(b.Pod.Status.Phase) {
		b.disruption()
	}
	gates := b.st.Conditions
	b.resizeConditions()
	ready := b.containersReady()
	b.add(b.readyToStart())
	b.add(b.initialized())
	b.add(b.podReady(ready, gates))
	b.add(ready)
	b.add(corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue})
	if b.NetworkProblem != "" {
		b.add(corev1.PodCondition{
			Type:    podutil.NetworkIntact,
			Status:  corev1.ConditionFalse,
			Reason:  "NetworkCheckFailed",
			Message: b.NetworkProblem,
		})
	}
	if podutil.RestartsAll(&b.Pod.Spec) {
		b.add(b.restartingAll())
	}
}

func (b *builder) add(c corev1.PodCondition) { b.st.Conditions = append(b.st.Conditions, b.dated(c)) }

// dated sets the observed generation of a condition and the time of its last transition.
func (b *builder) dated(c corev1.PodCondition) corev1.PodCondition {
	c.ObservedGeneration = b.Pod.Generation
	if old := podutil.Condition(b.Reported.Conditions, c.Type); old != nil && old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	} else {
		c.LastTransitionTime = seconds(b.Now)
	}
	return c
}

// disruption adds the condition DisruptionTarget if the node ended the pod by eviction, preemption or shutdown. It does
// not add it if the pod itself caused its end.
func (b *builder) disruption() {
	stop := b.Stop
	if stop == nil || stop.Reason == "" || stop.Own {
		return
	}
	message := stop.Message
	if stop.Reason == podutil.ReasonPreempting {
		message = messagePreempted
	}
	c := b.dated(corev1.PodCondition{
		Type:    corev1.DisruptionTarget,
		Status:  corev1.ConditionTrue,
		Reason:  corev1.PodReasonTerminationByKubelet,
		Message: message,
	})
	if old := podutil.Condition(b.st.Conditions, c.Type); old != nil {
		*old = c
		return
	}
	b.st.Conditions = append(b.st.Conditions, c)
}

// readyToStart is True if exactly one sandbox is ready, it is the newest one and has its network, and the volumes are
// mounted. The kubelet creates the sandbox after it has mounted the volumes, so there its sandbox implies them.
func (b *builder) readyToStart() corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse}
	c.Message = b.sandboxProblem()
	if c.Message == "" {
		c.Status = corev1.ConditionTrue
		return c
	}
	c.Reason = reasonSandboxNotReady
	old := podutil.Condition(b.Reported.Conditions, c.Type)
	if len(b.Sandboxes) == 0 && old != nil && old.Status == c.Status && old.Reason != "" {
		c.Message = old.Message // the removal of an ended sandbox is not worth another status
	}
	return c
}

// sandboxProblem says in the kubelet's words why containers cannot start yet; empty if they can.
func (b *builder) sandboxProblem() string {
	ready := 0
	for _, box := range b.Sandboxes {
		if box.Ready {
			ready++
		}
	}
	switch {
	case len(b.Sandboxes) == 0:
		return "no pod sandbox exists"
	case ready > 1:
		return "multiple pod sandboxes are ready and need to be reconciled"
	case b.Current == nil:
		return b.Sandboxes[0].Problem(b.Pod)
	case !b.everMounted():
		return "volumes are not mounted"
	}
	return ""
}

// everMounted reports whether the pod's volumes are mounted, or were at some point: the agent forgets its mounts when
// it restarts, but a container is created only after them.
func (b *builder) everMounted() bool {
	return b.EverRan() || podutil.IsTrue(b.Reported, corev1.PodReadyToStartContainers) || b.VolumesMounted()
}

func (b *builder) initialized() corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	if b.st.Phase == corev1.PodSucceeded {
		c.Reason = reasonPodCompleted
		return c
	}
	for i := range b.st.ContainerStatuses {
		if state := &b.st.ContainerStatuses[i].State; state.Running != nil || state.Terminated != nil {
			return c
		}
	}
	var incomplete []string
	for _, slot := range b.Slots {
		status := podutil.ContainerStatus(b.st, slot.Spec.Name)
		done := slot.Role > podutil.RoleSidecar || slot.Role == podutil.RoleInit && status.Ready ||
			slot.Role == podutil.RoleSidecar && status.Started != nil && *status.Started
		if !done {
			incomplete = append(incomplete, slot.Spec.Name)
		}
	}
	// Once initialized, a pod stays so.
	if len(incomplete) > 0 && !podutil.IsTrue(b.Reported, corev1.PodInitialized) {
		c.Status, c.Reason = corev1.ConditionFalse, reasonContainersNotInitialized
		c.Message = list("containers with incomplete status", incomplete)
	}
	return c
}

func (b *builder) containersReady() corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionFalse}
	switch b.st.Phase {
	case corev1.PodSucceeded:
		c.Reason = reasonPodCompleted
		return c
	case corev1.PodFailed:
		c.Reason = reasonPodFailed
		// Reason and message do not change once the phase is terminal.
		old := podutil.Condition(b.Reported.Conditions, c.Type)
		if podutil.IsTerminal(b.Reported.Phase) && old != nil && old.Status == c.Status {
			c.Reason, c.Message = old.Reason, old.Message
		}
		return c
	}
	var unready []string
	for _, slot := range b.Slots {
		status := podutil.ContainerStatus(b.st, slot.Spec.Name)
		counts := slot.Role == podutil.RoleSidecar || slot.Role == podutil.RoleApp
		if counts && status != nil && !status.Ready {
			unready = append(unready, slot.Spec.Name)
		}
	}
	if len(unready) == 0 {
		c.Status = corev1.ConditionTrue
		return c
	}
	c.Reason, c.Message = reasonContainersNotReady, list("containers with unready status", unready)
	return c
}

// list returns a message about names, in the form of the kubelet's.
func list(what string, names []string) string { return what + ": [" + strings.Join(names, " ") + "]" }

// podReady returns the condition Ready: ContainersReady and all readiness gates must be True.
func (b *builder) podReady(containers corev1.PodCondition, gates []corev1.PodCondition) corev1.PodCondition {
	c := containers
	c.Type = corev1.PodReady
	if c.Status != corev1.ConditionTrue {
		return c
	}
	var unready []string
	for _, gate := range b.Pod.Spec.ReadinessGates {
		if why := gateUnready(gate.ConditionType, gates); why != "" {
			unready = append(unready, why)
		}
	}
	if len(unready) > 0 {
		c.Status = corev1.ConditionFalse
		c.Reason, c.Message = reasonReadinessGatesNotReady, strings.Join(unready, ", ")
	}
	return c
}

// gateUnready returns why a readiness gate is not True; empty if it is.
func gateUnready(gate corev1.PodConditionType, all []corev1.PodCondition) string {
	switch c := podutil.Condition(all, gate); {
	case c == nil:
		return fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", string(gate))
	case c.Status != corev1.ConditionTrue:
		return fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", string(gate), c.Status)
	}
	return ""
}

// restartingAll returns the condition of a pod whose restart rules can restart all containers (KEP-5532).
func (b *builder) restartingAll() corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.AllContainersRestarting, Status: corev1.ConditionFalse}
	switch {
	case b.st.Phase == corev1.PodSucceeded:
		c.Reason = reasonPodCompleted
	case b.st.Phase == corev1.PodFailed:
		c.Reason = reasonPodFailed
	case b.Resetting:
		c.Status = corev1.ConditionTrue
		c.Reason, c.Message = reasonResetStarted, messageResetStarted
	}
	return c
}
