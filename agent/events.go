package agent

import (
	"cmp"
	"fmt"
	"time"

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
	if w.published.deadline || stop == nil || stop.Reason != podutil.ReasonDeadlineExceeded {
		return
	}
	w.published.deadline = true
	w.cfg.Events.PodEvent(w.order.Pod, "", corev1.EventTypeNormal, stop.Reason, stop.Message)
}

// backoffEvents records, once for each back-off, that a container waits before it is tried again.
func (w *worker) backoffEvents(before, now *corev1.PodStatus) {
	for c := range podutil.ContainerStatuses(now) {
		switch waiting := c.State.Waiting; {
		case waiting == nil:
		case waiting.Reason == podutil.ReasonCrashLoopBackOff:
			w.crashBackoffEvent(podutil.ContainerStatus(before, c.Name), c)
		case waiting.Reason == podutil.ReasonImagePullBackOff:
			w.imageBackoffEvent(c)
		}
	}
}

// crashBackoffEvent records that a container waits before it restarts.
func (w *worker) crashBackoffEvent(before, now *corev1.ContainerStatus) {
	if before != nil && before.State.Waiting != nil && before.State.Waiting.Reason == now.State.Waiting.Reason &&
		before.RestartCount == now.RestartCount {
		return
	}
	pod := w.order.Pod
	w.cfg.Events.PodEvent(pod, now.Name, corev1.EventTypeWarning, "BackOff",
		fmt.Sprintf("Back-off restarting failed container %s in pod %s", now.Name, podutil.Text(pod)))
}

// imageBackoffEvent records, once for each failed pull, that a container waits for its image. The event has the image.
// One about the image of a volume refers to the pod, not to the container.
func (w *worker) imageBackoffEvent(c *corev1.ContainerStatus) {
	pod := w.order.Pod
	_, of := podutil.Container(&pod.Spec, c.Name)
	if of == nil {
		return
	}
	f, _ := w.memory.Recall().FailedImage(pod, of)
	if f.At.Equal(w.published.pullFailed[c.Name]) {
		return
	}
	if w.published.pullFailed == nil {
		w.published.pullFailed = map[string]time.Time{}
	}
	w.published.pullFailed[c.Name] = f.At
	container := c.Name
	if f.Image != of.Image {
		container = ""
	}
	w.cfg.Events.PodEvent(pod, container, corev1.EventTypeNormal, "BackOff",
		fmt.Sprintf("Back-off pulling image %q", f.Image))
	w.cfg.Events.PodEvent(pod, c.Name, corev1.EventTypeWarning, "Failed", "Error: "+c.State.Waiting.Reason)
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
