package execute

import (
	"cmp"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/cri"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// report logs the outcome of a step, and records an event about a failure.
func (x *Executor) report(t *Task, out *Outcome) {
	switch {
	case out.Problem == nil:
		t.Log.Debug("step done", "step", t.Step.String(), "took", out.Took)
	case out.Problem.Cancelled:
		t.Log.Debug("step was cancelled", "step", t.Step.String(), "took", out.Took)
	case looks(t.Step):
		t.Log.Debug("image is still not on the node", "step", t.Step.String(), "took", out.Took)
	default:
		log := t.Log.With("step", t.Step.String(), "took", out.Took)
		if out.Problem.Reason != "" {
			log = log.With("reason", out.Problem.Reason)
		}
		log.Warn("step failed", "err", out.Problem.Message)
		x.failureEvents(t, out.Problem)
	}
}

// looks reports whether a step only looks for an image: the failure of its pull has been reported.
func looks(s podstate.Step) bool {
	image, ensures := s.(podstate.EnsureImage)
	return ensures && image.Look
}

// failureEvents records that a step has failed, with the reason and message of the kubelet. A pod is being killed only
// if it ends, and until it is stopped: otherwise its containers and its sandbox are replaced.
func (x *Executor) failureEvents(t *Task, p *podstate.Problem) {
	warn := func(container, reason, message string) {
		x.backends.Events.PodEvent(t.Pod, container, corev1.EventTypeWarning, reason, message)
	}
	if t.Ending && stops(t.Step) {
		warn("", "FailedKillPod", "error killing pod: "+p.Message)
		return
	}
	switch s := t.Step.(type) {
	case podstate.Prepare:
		warn("", "FailedCreatePodContainer", "unable to ensure pod container exists: "+p.Message)
	case podstate.PrepareClaims:
		warn("", "FailedPrepareDynamicResources", "Failed to prepare dynamic resources: "+p.Message)
	case podstate.Mount:
		warn("", cmp.Or(p.Reason, "FailedMount"), p.Message)
	case podstate.CreateSandbox:
		warn("", "FailedCreatePodSandBox", "Failed to create pod sandbox: "+p.Message)
	case podstate.EnsureImage:
		reason, message := imageEvent(s, p)
		warn(s.Container, reason, message)
		warn(s.Container, "Failed", "Error: "+p.Reason)
	case podstate.CreateContainer:
		warn(s.Name, "Failed", "Error: "+p.Message)
	case podstate.StartContainer:
		warn(s.Name, "Failed", "Error: "+p.Message)
	case podstate.PostStart:
		warn(s.Name, "FailedPostStartHook", "PostStartHook failed")
	case podstate.StopContainer:
		warn(s.Name, "Failed", "Error: cannot stop the container: "+p.Message)
	case podstate.StopSandbox, podstate.Unmount, podstate.UnprepareClaims, podstate.RemoveCgroup:
		warn("", "Failed", "Error: cannot "+s.String()+": "+p.Message)
	}
}

// stops reports whether a step stops a container or a sandbox.
func stops(s podstate.Step) bool {
	switch s.(type) {
	case podstate.StopContainer, podstate.StopSandbox:
		return true
	}
	return false
}

// imageEvent returns the event about an image that is not present.
func imageEvent(s podstate.EnsureImage, p *podstate.Problem) (reason, message string) {
	switch p.Reason {
	case podutil.ReasonErrImageNeverPull:
		return p.Reason, p.Message
	case podutil.ReasonInvalidImageName, podutil.ReasonImageInspect:
		return "InspectFailed", p.Message
	}
	return "Failed", fmt.Sprintf("Failed to pull image %q: %s", s.Image, cmp.Or(p.Event, p.Message))
}

// nameHeld follows the answer of containerd that the name of a sandbox or container has an owner. After a call that has
// timed out this is normal for a moment. If the work of that call never ends, it lasts until containerd restarts.
const nameHeld = " (containerd holds the name for an earlier call; if this lasts for minutes, delete the pod or " +
	"restart containerd)"

// message returns the text of an error. If the runtime has answered, it is the kubelet's: for a container the runtime's
// message alone, for a sandbox that with gRPC's prefix.
func message(step podstate.Step, err error) string {
	call, ok := errors.AsType[*cri.Error](err)
	if !ok || call.NoAnswer > 0 {
		return err.Error()
	}
	held := ""
	if cri.IsNameHeld(err) {
		held = nameHeld
	}
	switch step.(type) {
	case podstate.CreateContainer, podstate.StartContainer:
		return cri.Message(err) + held
	case podstate.CreateSandbox:
		return call.Err.Error() + held
	}
	return err.Error()
}
