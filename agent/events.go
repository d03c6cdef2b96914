package agent

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// lastStatus returns the status that was published last, or before the first one that which the API showed.
func (w *worker) lastStatus() *corev1.PodStatus {
	return cmp.Or(w.memory.Recall().Reported(), &w.order.Pod.Status)
}

// deadlineEvent records, once, that the pod has to end because its active deadline has passed. The status says that
// only when the pod has ended.
func (w *worker) deadlineEvent(stop *podstate.Stop) {
	if w.reported.deadline || stop == nil || stop.Reason != podutil.ReasonDeadlineExceeded {
		return
	}
	w.reported.deadline = true
	w.cfg.Events.PodEvent(w.order.Pod, "", corev1.EventTypeNormal, stop.Reason, stop.Message)
}

// imageBackoffEvent records an event with the image that the container waits for. An event about the image of a volume
// refers to the pod, not to the container.
func (w *worker) imageBackoffEvent(c *corev1.ContainerStatus) {
	pod := w.order.Pod
	image, container := c.Image, c.Name
	if _, of := podutil.Container(&pod.Spec, c.Name); of != nil {
		if f, failed := w.memory.Recall().FailedImage(pod, of); failed && f.Image != of.Image {
			image, container = f.Image, ""
		}
	}
	w.cfg.Events.PodEvent(pod, container, corev1.EventTypeNormal, "BackOff",
		fmt.Sprintf("Back-off pulling image %q", image))
}

// backoffEvents records, once for each back-off, that a container waits before it is tried again.
func (w *worker) backoffEvents(before, now *corev1.PodStatus) {
	for c := range podutil.ContainerStatuses(now) {
		waiting, last := c.State.Waiting, podutil.ContainerStatus(before, c.Name)
		if waiting == nil || last != nil && last.State.Waiting != nil &&
			last.State.Waiting.Reason == waiting.Reason && last.RestartCount == c.RestartCount {
			continue
		}
		pod := w.order.Pod
		switch waiting.Reason {
		case podutil.ReasonCrashLoopBackOff:
			w.cfg.Events.PodEvent(pod, c.Name, corev1.EventTypeWarning, "BackOff",
				fmt.Sprintf("Back-off restarting failed container %s in pod %s_%s(%s)", c.Name, pod.Name, pod.Namespace, pod.UID))
		case podutil.ReasonImagePullBackOff:
			w.imageBackoffEvent(c)
			w.cfg.Events.PodEvent(pod, c.Name, corev1.EventTypeWarning, "Failed", "Error: "+waiting.Reason)
		}
	}
}

// resizeEvents records an event when a resize has completed or failed. That of a pod that ends is given up.
func (w *worker) resizeEvents(st *corev1.PodStatus, ending *podstate.Stop) {
	last := w.memory.Recall().Reported()
	if last == nil || ending != nil || w.order.Allocation == nil {
		return
	}
	before := podutil.Condition(last.Conditions, corev1.PodResizeInProgress)
	now := podutil.Condition(st.Conditions, corev1.PodResizeInProgress)
	switch {
	case before != nil && now == nil:
		w.cfg.resizeEvent(w.order.Pod, before.ObservedGeneration, corev1.EventTypeNormal, "ResizeCompleted",
			"Pod resize completed", "")
	case now != nil && now.Reason == corev1.PodReasonError && (before == nil || before.Message != now.Message):
		w.cfg.resizeEvent(w.order.Pod, now.ObservedGeneration, corev1.EventTypeWarning, "ResizeError",
			"Pod resize error", now.Message)
	}
}
