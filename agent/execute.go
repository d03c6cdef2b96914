package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/cri/images"
	"github.com/nodelet/nodelet/volumes"
)

// task is a step with the facts of the pod that it needs, taken when it starts, so that it can run beside the worker.
type task struct {
	backends *Backends
	log      *slog.Logger
	limiters *limiters
	step     podstate.Step
	pod      *corev1.Pod
	// sandbox is the pod's current sandbox; nil if there is none.
	sandbox *podstate.Sandbox
	// instances are the pod's containers in the runtime.
	instances []podstate.Container
	// mounts are the mounted volumes by name and image the container's image, for CreateContainer.
	mounts map[string]volumes.Mounted
	image  images.Image
	// pulled are the images that are present, by the keys of their steps, for CreateContainer.
	pulled map[podstate.Key]images.Image
	// services are those read while the sandbox was created, for CreateContainer.
	services *serviceRead
	// made is how the container was created, for StopContainer.
	made spec.ContainerFacts
	// onDisk is the volume's directory, for Unmount.
	onDisk volumes.OnDisk
}

// outcome is the result of a step, with what only the worker must remember of it.
type outcome struct {
	podstate.Result
	mounted volumes.Mounted
	image   images.Image
	took    time.Duration
}

// execute runs a step.
func (t *task) execute(ctx context.Context) (out outcome) {
	out.Step = t.step
	var err error
	switch s := t.step.(type) {
	case podstate.Prepare:
		out.PodSize, err = t.prepare()
	case podstate.PrepareClaims:
		err = t.prepareClaims(ctx)
	case podstate.UnprepareClaims:
		err = t.backends.Claims.Unprepare(ctx, t.pod.UID)
	case podstate.Mount:
		out.mounted, err = t.mount(ctx, s)
		out.RefreshAt = out.mounted.RefreshAt
	case podstate.CreateSandbox:
		err = t.createSandbox(ctx, s)
	case podstate.EnsureImage:
		out.image, err = t.ensureImage(ctx, s)
	case podstate.CreateContainer:
		err = t.createContainer(ctx, s)
	case podstate.StartContainer:
		err = t.startContainer(ctx, s)
	case podstate.PostStart:
		err = t.postStart(ctx, s)
	case podstate.PreStop:
		t.runPreStop(ctx, podstate.StopContainer{ID: s.ID, Name: s.Name, Deadline: s.Deadline})
	case podstate.StopContainer:
		err = t.stopContainer(ctx, s)
	case podstate.RemoveContainer:
		err = t.removeContainer(ctx, s)
	case podstate.NoteReset:
		err = t.noteReset(s)
	case podstate.StopSandbox:
		err = t.limiters.stop.do(ctx, func() error { return t.backends.Runtime.StopPodSandbox(ctx, s.ID) })
	case podstate.RemoveSandbox:
		err = t.limiters.remove.do(ctx, func() error { return t.backends.Runtime.RemovePodSandbox(ctx, s.ID) })
	case podstate.Resize:
		out.Resources, err = t.resize(ctx, s)
	case podstate.ResizePod:
		err = t.resizePod(ctx, s)
	case podstate.Unmount:
		err = t.backends.Volumes.Unmount(ctx, t.pod.UID, t.onDisk)
	case podstate.RemoveCgroup:
		err = t.removeCgroup(ctx)
	case podstate.RemoveDir:
		err = t.removeDir(ctx)
	default:
		panic(fmt.Sprintf("unknown step %T", t.step))
	}
	out.Problem = problem(ctx, t.step, err)
	return out
}

// problem converts an error for statuses and events. The reason depends on the step if the error has none.
func problem(ctx context.Context, step podstate.Step, err error) *podstate.Problem {
	if err == nil {
		return nil
	}
	p := &podstate.Problem{Reason: defaultReason(step), Message: message(step, err), Cancelled: ctx.Err() != nil}
	var config *spec.Reason
	var image *images.Reason
	switch {
	case errors.As(err, &config):
		p.Reason = config.Reason
	case errors.As(err, &image):
		p.Reason = image.Reason
	}
	return p
}

// message returns the text of an error. For a container it is the runtime's message, without the name of the call.
func message(step podstate.Step, err error) string {
	var call *cri.Error
	switch step.(type) {
	case podstate.CreateContainer, podstate.StartContainer:
		if errors.As(err, &call) && call.NoAnswer == 0 {
			return cri.Message(err)
		}
	}
	return err.Error()
}

func defaultReason(step podstate.Step) string {
	switch step.(type) {
	case podstate.EnsureImage:
		return podstate.ReasonErrImagePull
	case podstate.CreateContainer:
		return podstate.ReasonCreateContainer
	case podstate.StartContainer:
		return podstate.ReasonRunContainer
	}
	return ""
}

// report logs the outcome of a step, and records an event about a failure.
func (t *task) report(out outcome, took time.Duration) {
	switch {
	case out.Problem == nil:
		t.log.Debug("step done", "step", t.step.String(), "took", took)
	case out.Problem.Cancelled:
		t.log.Debug("step was cancelled", "step", t.step.String(), "took", took)
	default:
		t.log.Warn("step failed", "step", t.step.String(), "took", took,
			"reason", out.Problem.Reason, "err", out.Problem.Message)
		t.failureEvent(out.Problem)
	}
}
