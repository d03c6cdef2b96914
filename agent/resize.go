package agent

import (
	corev1 "k8s.io/api/core/v1"
)

// resizeEvents records an event when a resize has completed or failed.
func (w *worker) resizeEvents(st *corev1.PodStatus) {
	if w.memory.Reported == nil || w.desired.Stop != nil || w.desired.Allocation == nil {
		return
	}
	before, now := resizeCondition(w.memory.Reported), resizeCondition(st)
	record := func(eventType, reason, what, trouble string, generation int64) {
		pod := w.desired.Pod
		w.cfg.Events.PodEvent(pod, "", eventType, reason, what+": "+resizeSummary(pod, generation, trouble))
	}
	switch {
	case before != nil && now == nil:
		record(corev1.EventTypeNormal, "ResizeCompleted", "Pod resize completed", "", before.ObservedGeneration)
	case now != nil && now.Reason == corev1.PodReasonError && (before == nil || before.Message != now.Message):
		record(corev1.EventTypeWarning, "ResizeError", "Pod resize error", now.Message, now.ObservedGeneration)
	}
}

func resizeCondition(st *corev1.PodStatus) *corev1.PodCondition {
	for i := range st.Conditions {
		if c := &st.Conditions[i]; c.Type == corev1.PodResizeInProgress {
			return c
		}
	}
	return nil
}
