package plan

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Reasons of pod conditions; the words are the kubelet's.
const (
	reasonContainersNotReady       = "ContainersNotReady"
	reasonContainersNotInitialized = "ContainersNotInitialized"
	reasonReadinessGatesNotReady   = "ReadinessGatesNotReady"
	reasonPodCompleted             = "PodCompleted"
	reasonPodFailed                = "PodFailed"
)

// NetworkIntact is nodelet's own: False while the network plugins find the pod's network not as they made it, and missing
// otherwise.
const NetworkIntact corev1.PodConditionType = "nodelet.dev/NetworkIntact"

// ours tells whether the node agent owns a condition. DisruptionTarget it shares with the eviction API and others.
func ours(t corev1.PodConditionType) bool {
	switch t {
	case corev1.PodScheduled, corev1.PodReady, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReadyToStartContainers,
		corev1.PodResizePending, corev1.PodResizeInProgress, corev1.AllContainersRestarting, NetworkIntact:
		return true
	}
	return false
}

// conditions fills in the pod's conditions, for the phase that st has already. Those of other owners come first, as they are.
func (v *view) conditions(st *corev1.PodStatus, calm bool) {
	api := v.d.Pod.Status.Conditions
	st.Conditions = make([]corev1.PodCondition, 0, max(6, len(api)))
	for i := range api {
		if !ours(api[i].Type) {
			st.Conditions = append(st.Conditions, api[i])
		}
	}
	if calm && !podutil.IsTerminal(v.d.Pod.Status.Phase) {
		v.disruption(st)
	}
	gates := st.Conditions
	v.resizeConditions(st)
	ready := v.containersReady(st)
	st.Conditions = append(st.Conditions,
		v.dated(corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: v.readyToStart()}),
		v.dated(v.initializedCondition(st)),
		v.dated(v.podReady(ready, gates)),
		v.dated(ready),
		v.dated(corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}),
	)
	if v.o.NetworkProblem != "" {
		st.Conditions = append(st.Conditions, v.dated(corev1.PodCondition{Type: NetworkIntact, Status: corev1.ConditionFalse,
			Reason: "NetworkCheckFailed", Message: v.o.NetworkProblem}))
	}
	if podutil.RestartsAll(&v.d.Pod.Spec) {
		st.Conditions = append(st.Conditions, v.dated(v.restartingAll(st.Phase)))
	}
}

// What is said of pods that end for a critical one. The texts are the kubelet's.
const (
	ReasonPreempting = "Preempting"
	MessagePreempted = "Preempted in order to admit critical pod"
	messageDisrupted = "Pod was preempted by Kubelet to accommodate a critical pod."
)

// disruption notes that the node ended the pod: by eviction, preemption or shutdown, and not by its own deadline or for its own
// fault.
func (v *view) disruption(st *corev1.PodStatus) {
	stop := v.d.Stop
	if stop == nil || stop.Reason == "" || stop.Own {
		return
	}
	message := stop.Message
	if stop.Reason == ReasonPreempting {
		message = messageDisrupted
	}
	c := v.dated(corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: corev1.PodReasonTerminationByKubelet, Message: message})
	for i := range st.Conditions {
		if st.Conditions[i].Type == c.Type {
			st.Conditions[i] = c
			return
		}
	}
	st.Conditions = append(st.Conditions, c)
}

// dated completes a condition: with the generation it was made for, and since when it has had its status.
func (v *view) dated(c corev1.PodCondition) corev1.PodCondition {
	c.ObservedGeneration = v.d.Pod.Generation
	c.LastTransitionTime = seconds(v.o.Now)
	for i := range v.old.Conditions {
		old := &v.old.Conditions[i]
		if old.Type == c.Type && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	return c
}

// readyToStart: there is one ready sandbox with its network, the newest.
func (v *view) readyToStart() corev1.ConditionStatus {
	ready := 0
	for _, s := range v.sandboxes {
		if s.Ready {
			ready++
		}
	}
	if v.current != nil && ready == 1 {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}

func (v *view) initializedCondition(st *corev1.PodStatus) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	if st.Phase == corev1.PodSucceeded {
		c.Reason = reasonPodCompleted
		return c
	}
	for i := range st.ContainerStatuses {
		if s := &st.ContainerStatuses[i].State; s.Running != nil || s.Terminated != nil {
			return c
		}
	}
	var incomplete []string
	for i := range v.slots {
		s := &v.slots[i]
		if s.role != podutil.RoleInit && s.role != podutil.RoleSidecar {
			break
		}
		status := podutil.StatusIn(st.InitContainerStatuses, s.spec.Name)
		done := status.Ready
		if s.role == podutil.RoleSidecar {
			done = status.Started != nil && *status.Started
		}
		if !done {
			incomplete = append(incomplete, s.spec.Name)
		}
	}
	// Once initialized, a pod stays so.
	if len(incomplete) > 0 && !podutil.IsTrue(v.old, corev1.PodInitialized) {
		c.Status, c.Reason = corev1.ConditionFalse, reasonContainersNotInitialized
		c.Message = fmt.Sprintf("containers with incomplete status: %s", incomplete)
	}
	return c
}

func (v *view) containersReady(st *corev1.PodStatus) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionFalse}
	switch st.Phase {
	case corev1.PodSucceeded:
		c.Reason = reasonPodCompleted
		return c
	case corev1.PodFailed:
		c.Reason = reasonPodFailed
		// What was said of a pod as it ended stays.
		if old := podutil.Condition(v.old.Conditions, c.Type); podutil.IsTerminal(v.old.Phase) && old != nil && old.Status == c.Status {
			c.Reason, c.Message = old.Reason, old.Message
		}
		return c
	}
	var unready []string
	for i := range v.slots {
		s := &v.slots[i]
		var status *corev1.ContainerStatus
		switch s.role {
		case podutil.RoleSidecar:
			status = podutil.StatusIn(st.InitContainerStatuses, s.spec.Name)
		case podutil.RoleApp:
			status = podutil.StatusIn(st.ContainerStatuses, s.spec.Name)
		}
		if status != nil && !status.Ready {
			unready = append(unready, s.spec.Name)
		}
	}
	if len(unready) == 0 {
		c.Status = corev1.ConditionTrue
		return c
	}
	c.Reason, c.Message = reasonContainersNotReady, fmt.Sprintf("containers with unready status: %s", unready)
	return c
}

// podReady is ContainersReady and the readiness gates of others.
func (v *view) podReady(containers corev1.PodCondition, shown []corev1.PodCondition) corev1.PodCondition {
	c := containers
	c.Type = corev1.PodReady
	if c.Status != corev1.ConditionTrue {
		return c
	}
	var unready []string
	for _, gate := range v.d.Pod.Spec.ReadinessGates {
		if why := gateUnready(gate.ConditionType, shown); why != "" {
			unready = append(unready, why)
		}
	}
	if len(unready) > 0 {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, reasonReadinessGatesNotReady, strings.Join(unready, ", ")
	}
	return c
}

func gateUnready(gate corev1.PodConditionType, shown []corev1.PodCondition) string {
	for _, c := range shown {
		if c.Type != gate {
			continue
		}
		if c.Status == corev1.ConditionTrue {
			return ""
		}
		return fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", string(gate), c.Status)
	}
	return fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", string(gate))
}
