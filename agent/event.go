package agent

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/status"
)

// event records an event about the pod.
func (t *task) event(eventType, reason, message string) {
	t.backends.Events.Event(podReference(t.pod, ""), eventType, reason, message)
}

// containerEvent records an event about one of its containers.
func (t *task) containerEvent(container, eventType, reason, message string) {
	t.backends.Events.Event(podReference(t.pod, fieldPath(t.pod, container)), eventType, reason, message)
}

func podReference(pod *corev1.Pod, field string) status.Ref {
	return status.Ref{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, FieldPath: field}
}

// fieldPath is the path of a container in the form that events have: spec.containers{app}.
func fieldPath(pod *corev1.Pod, container string) string {
	role, c := podutil.Container(&pod.Spec, container)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("spec.%s{%s}", role.Field(), container)
}

// failureEvent records that a step has failed, with the reason and message of the kubelet.
func (t *task) failureEvent(p *podstate.Problem) {
	const warning = corev1.EventTypeWarning
	switch s := t.step.(type) {
	case podstate.Prepare:
		t.event(warning, "FailedCreatePodContainer", "unable to ensure pod container exists: "+p.Message)
	case podstate.PrepareClaims:
		t.event(warning, "FailedPrepareDynamicResources", "Failed to prepare dynamic resources: "+p.Message)
	case podstate.Mount:
		t.event(warning, "FailedMount", p.Message)
	case podstate.CreateSandbox:
		t.event(warning, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+p.Message)
	case podstate.EnsureImage:
		t.imageFailure(s, p)
	case podstate.CreateContainer:
		t.containerEvent(s.Name, warning, "Failed", "Error: "+p.Message)
	case podstate.StartContainer:
		t.containerEvent(s.Name, warning, "Failed", "Error: "+p.Message)
	case podstate.PostStart:
		t.containerEvent(s.Name, warning, "FailedPostStartHook", "PostStartHook failed")
	case podstate.StopContainer, podstate.StopSandbox, podstate.Unmount, podstate.UnprepareClaims, podstate.RemoveCgroup:
		t.event(warning, "FailedKillPod", "error killing pod: "+p.Message)
	}
}

func (t *task) imageFailure(s podstate.EnsureImage, p *podstate.Problem) {
	const warning = corev1.EventTypeWarning
	switch p.Reason {
	case podstate.ReasonErrImageNeverPull:
		t.containerEvent(s.Container, warning, p.Reason, p.Message)
	case podstate.ReasonInvalidImageName:
		t.containerEvent(s.Container, warning, "InspectFailed", p.Message)
	default:
		t.containerEvent(s.Container, warning, "Failed", fmt.Sprintf("Failed to pull image %q: %s", s.Image, p.Message))
	}
	t.containerEvent(s.Container, warning, "Failed", "Error: "+p.Reason)
}
