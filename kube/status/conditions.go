package status

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// conditionPatch is a condition as it is sent: with all fields, so that the server clears a reason or message that is
// empty now.
type conditionPatch struct {
	Type               corev1.PodConditionType `json:"type"`
	Status             corev1.ConditionStatus  `json:"status"`
	ObservedGeneration int64                   `json:"observedGeneration"`
	LastProbeTime      metav1.Time             `json:"lastProbeTime"` // null when zero
	LastTransitionTime metav1.Time             `json:"lastTransitionTime"`
	Reason             *string                 `json:"reason"`
	Message            *string                 `json:"message"`
}

// conditionDelete removes a condition by its merge key.
type conditionDelete struct {
	Patch string                  `json:"$patch"`
	Type  corev1.PodConditionType `json:"type"`
}

// conditions adds the owned conditions that differ and removes the owned ones that are no longer wanted.
func (p *patch) conditions(from, to *corev1.PodStatus) {
	var list []any
	for i := range to.Conditions {
		c := sharedCondition(from, to, to.Conditions[i])
		if c == nil || sameCondition(podutil.Condition(from.Conditions, c.Type), c) {
			continue
		}
		p.differs = true
		if p.compareOnly {
			return
		}
		list = append(list, conditionPatch{
			Type: c.Type, Status: c.Status, ObservedGeneration: c.ObservedGeneration,
			LastProbeTime: c.LastProbeTime, LastTransitionTime: c.LastTransitionTime,
			Reason: orNull(c.Reason), Message: orNull(c.Message),
		})
	}
	for i := range from.Conditions {
		t := from.Conditions[i].Type
		if podutil.OwnsCondition(t) && podutil.Condition(to.Conditions, t) == nil {
			list = append(list, conditionDelete{Patch: "delete", Type: t})
		}
	}
	if len(list) > 0 {
		p.set("conditions", list)
	}
}

// sharedCondition returns the part of c that may be sent: c itself if a node agent owns it, nil if another component
// does. Two are written jointly, as the kubelet does:
//   - PodScheduled belongs to the scheduler. A node agent adds it to pods that were not scheduled (mirror pods) and
//     keeps its observed generation up to date.
//   - DisruptionTarget is added together with a terminal phase (eviction, preemption, node shutdown) and not touched
//     otherwise.
func sharedCondition(from, to *corev1.PodStatus, c corev1.PodCondition) *corev1.PodCondition {
	switch {
	case podutil.OwnsCondition(c.Type):
		return &c
	case c.Type == corev1.PodScheduled:
		old := podutil.Condition(from.Conditions, c.Type)
		if old == nil {
			return &c
		}
		scheduled := *old
		scheduled.ObservedGeneration = max(c.ObservedGeneration, old.ObservedGeneration)
		return &scheduled
	case c.Type == corev1.DisruptionTarget && podutil.IsTerminal(to.Phase) && !podutil.IsTerminal(from.Phase):
		return &c
	}
	return nil
}

// sameCondition reports whether two conditions differ at most in their times, which are no reason for a request.
func sameCondition(a, b *corev1.PodCondition) bool {
	return a != nil && a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message &&
		a.ObservedGeneration == b.ObservedGeneration
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func isReady(s *corev1.PodStatus) bool { return podutil.IsTrue(s, corev1.PodReady) }
