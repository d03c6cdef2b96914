package node

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

// Runtime is what the container runtime last said of itself.
type Runtime struct {
	// Err says why it could not be asked. The rest is then empty; the node stays Ready for 30 s on the last good answer.
	Err error
	// Name and Version become "containerd://2.4.2".
	Name, Version string
	// Ready and Network are the CRI conditions RuntimeReady and NetworkReady.
	Ready, Network RuntimeCondition
	// Handlers are the runtime classes' handlers; the default one has an empty name.
	Handlers []RuntimeHandler
	// SupplementalGroupsPolicy says whether the runtime knows supplementalGroupsPolicy; nil where it says nothing.
	SupplementalGroupsPolicy *bool
}

// RuntimeCondition is one condition of the CRI status.
type RuntimeCondition struct {
	OK              bool
	Reason, Message string
}

// RuntimeHandler is one handler with its features.
type RuntimeHandler struct {
	Name                                    string
	RecursiveReadOnlyMounts, UserNamespaces bool
}

// Pressure says which resources run short, as eviction sees it.
type Pressure struct{ Memory, Disk, PID bool }

// runtimeMayBeSilent is how long the last good answer of the runtime counts, as with the kubelet.
const runtimeMayBeSilent = 30 * time.Second

// health is what the conditions are made of.
type health struct {
	runtime  Runtime   // the last good answer; the zero value before the first
	heard    time.Time // when that was; zero before the first
	pressure Pressure
	shutdown error // set while the node goes down
}

// problems gives what keeps the node from being Ready, in the kubelet's words.
func (h health) problems(now time.Time) error {
	var errs []error
	switch {
	case h.heard.IsZero():
		errs = append(errs, errors.New("container runtime status check may not have completed yet"))
	case now.Sub(h.heard) >= runtimeMayBeSilent:
		errs = append(errs, errors.New("container runtime is down"))
	}
	if !h.heard.IsZero() && !h.runtime.Ready.OK {
		errs = append(errs, fmt.Errorf("container runtime not ready: %s", h.runtime.Ready.text("RuntimeReady")))
	}
	if !h.heard.IsZero() && !h.runtime.Network.OK {
		errs = append(errs, fmt.Errorf("container runtime network not ready: %s", h.runtime.Network.text("NetworkReady")))
	}
	errs = append(errs, h.shutdown) // nil is left out below
	if all := utilerrors.NewAggregate(errs); all != nil {
		return all
	}
	return nil
}

func (c RuntimeCondition) text(name string) string {
	return fmt.Sprintf("%s=%t reason:%s message:%s", name, c.OK, c.Reason, c.Message)
}

// nodeEvent is an event about the node which belongs to a change of its status.
type nodeEvent struct{ kind, reason, message string }

// verdict is one outcome of a condition in the kubelet's words, with the event's reason for a change to it.
type verdict struct{ reason, message, event string }

// pressures are the three conditions of eviction: False when all is well.
var pressures = []struct {
	condition corev1.NodeConditionType
	under     func(Pressure) bool
	bad, good verdict
}{
	{corev1.NodeMemoryPressure, func(p Pressure) bool { return p.Memory },
		verdict{"KubeletHasInsufficientMemory", "kubelet has insufficient memory available", "NodeHasInsufficientMemory"},
		verdict{"KubeletHasSufficientMemory", "kubelet has sufficient memory available", "NodeHasSufficientMemory"}},
	{corev1.NodeDiskPressure, func(p Pressure) bool { return p.Disk },
		verdict{"KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"},
		verdict{"KubeletHasNoDiskPressure", "kubelet has no disk pressure", "NodeHasNoDiskPressure"}},
	{corev1.NodePIDPressure, func(p Pressure) bool { return p.PID },
		verdict{"KubeletHasInsufficientPID", "kubelet has insufficient PID available", "NodeHasInsufficientPID"},
		verdict{"KubeletHasSufficientPID", "kubelet has sufficient PID available", "NodeHasSufficientPID"}},
}

// conditions gives the four conditions with the kubelet's reasons and messages, Ready last, and the events that
// belong to the changes against old. keepReady leaves a Ready condition that is True as it is: see Reporter.
func conditions(name string, old []corev1.NodeCondition, h health, keepReady bool, now time.Time) ([]corev1.NodeCondition, []nodeEvent) {
	var list []corev1.NodeCondition
	var events []nodeEvent
	add := func(t corev1.NodeConditionType, status corev1.ConditionStatus, v verdict) {
		c := corev1.NodeCondition{Type: t, Status: status, Reason: v.reason, Message: v.message,
			LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now)}
		before := find(old, t)
		if before != nil && before.Status == status {
			c.LastTransitionTime = before.LastTransitionTime
		} else if before != nil || t != corev1.NodeReady { // that a new node is ready, or not yet, is no change
			events = append(events, nodeEvent{corev1.EventTypeNormal, v.event, fmt.Sprintf("Node %s status is now: %s", name, v.event)})
		}
		list = append(list, c)
	}
	for _, p := range pressures {
		if p.under(h.pressure) {
			add(p.condition, corev1.ConditionTrue, p.bad)
		} else {
			add(p.condition, corev1.ConditionFalse, p.good)
		}
	}
	problem := h.problems(now)
	before := find(old, corev1.NodeReady)
	switch {
	case problem == nil:
		add(corev1.NodeReady, corev1.ConditionTrue, verdict{"KubeletReady", "kubelet is posting ready status", "NodeReady"})
	case keepReady && h.shutdown == nil && before != nil && before.Status == corev1.ConditionTrue:
		add(corev1.NodeReady, corev1.ConditionTrue, verdict{reason: before.Reason, message: before.Message})
	default:
		add(corev1.NodeReady, corev1.ConditionFalse, verdict{"KubeletNotReady", problem.Error(), "NodeNotReady"})
	}
	return list, events
}

// owns says whether this agent writes conditions of type t.
func owns(t corev1.NodeConditionType) bool {
	for _, p := range pressures {
		if p.condition == t {
			return true
		}
	}
	return t == corev1.NodeReady
}

func find(list []corev1.NodeCondition, t corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range list {
		if list[i].Type == t {
			return &list[i]
		}
	}
	return nil
}
