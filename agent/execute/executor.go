package execute

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/cri/images"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Executor runs steps: it passes each to the type that does this kind of work. It is safe for concurrent use.
type Executor struct {
	backends   *Backends
	sandboxes  *sandboxes
	containers *containers
	hooks      *hooks
	pulls      *pulls
	mounts     *mounts
	resizes    *resizes
	dirs       *podDirs
}

// New returns an Executor that acts through b.
func New(backends Backends) *Executor {
	b, l := &backends, newLimiters()
	boxes := &sandboxes{b, l}
	volumes := &mounts{b, l}
	in := &inputs{Backends: b, mounts: volumes, sandboxes: boxes}
	return &Executor{
		backends:   b,
		sandboxes:  boxes,
		containers: &containers{b, in, boxes, l},
		hooks:      &hooks{b},
		pulls:      &pulls{b, boxes},
		mounts:     volumes,
		resizes:    &resizes{b},
		dirs:       &podDirs{b},
	}
}

// Execute runs a step, logs and counts its outcome, and records an event if it failed.
func (x *Executor) Execute(ctx context.Context, t *Task) *Outcome {
	x.backends.Working()
	began := time.Now()
	out := x.traced(ctx, t)
	out.Took = time.Since(began)
	x.report(t, out)
	if out.Problem == nil || !looks(t.Step) {
		x.backends.Metrics.Step(t.Pod, t.Step, out.Took, out.Problem)
	}
	return out
}

func (x *Executor) run(ctx context.Context, t *Task) *Outcome {
	out := &Outcome{Result: podstate.Result{Step: t.Step}}
	var err error
	var lacks bool
	switch s := t.Step.(type) {
	case podstate.Prepare:
		out.PodSize, err = x.dirs.prepare(t)
	case podstate.PrepareClaims:
		err = x.backends.Claims.Prepare(ctx, t.Pod)
	case podstate.UnprepareClaims:
		err = x.backends.Claims.Unprepare(ctx, t.Pod.UID)
	case podstate.Mount:
		out.mounted, err = x.mounts.mount(ctx, t, s)
		out.RefreshAt = out.mounted.RefreshAt
	case podstate.CreateSandbox:
		out.ID, err = x.sandboxes.create(ctx, t, s)
	case podstate.EnsureImage:
		out.image, lacks, err = x.pulls.ensure(ctx, t, s)
	case podstate.CreateContainer:
		out.ID, err = x.containers.create(ctx, t, s)
	case podstate.StartContainer:
		err = x.containers.start(ctx, t, s)
	case podstate.PostStart:
		err = x.hooks.postStart(ctx, t, s)
	case podstate.PreStop:
		err = x.hooks.preStop(ctx, t, s)
	case podstate.StopContainer:
		err = x.hooks.stop(ctx, t, s)
	case podstate.RemoveContainer:
		err = x.containers.remove(ctx, t, s)
	case podstate.MarkReset:
		err = x.dirs.markReset(t, s)
	case podstate.StopSandbox:
		err = x.sandboxes.stop(ctx, t, s)
	case podstate.RemoveSandbox:
		err = x.sandboxes.remove(ctx, s)
	case podstate.Resize:
		out.Resources, err = x.resizes.container(ctx, t, s)
	case podstate.ResizePod:
		err = x.resizes.pod(ctx, t, s)
	case podstate.Unmount:
		err = x.mounts.unmount(ctx, t)
	case podstate.RemoveCgroup:
		err = x.backends.Cgroups.Remove(ctx, t.Pod)
	case podstate.RemoveDir:
		err = x.dirs.remove(ctx, t)
	default:
		panic(fmt.Sprintf("unknown step %T", t.Step))
	}
	if out.Problem = problem(ctx, t.Step, err); lacks {
		out.Problem.Lacks = true
	}
	return out
}

// problem converts an error for statuses and events. The reason depends on the step if the error has none. Of a long
// text a part is kept: it may repeat a command, the name of an image, or all that a registry has answered.
func problem(ctx context.Context, step podstate.Step, err error) *podstate.Problem {
	if err == nil {
		return nil
	}
	p := &podstate.Problem{Reason: defaultReason(step, err), Message: message(step, err), Cancelled: ctx.Err() != nil}
	if config, ok := errors.AsType[*spec.Reason](err); ok {
		p.Reason = config.Reason
	} else if image, ok := errors.AsType[*images.Reason](err); ok {
		p.Reason, p.Event = image.Reason, image.Event
	}
	p.Message, p.Event = podutil.Shorten(p.Message, podutil.MaxMessage), podutil.Shorten(p.Event, podutil.MaxMessage)
	return p
}

func defaultReason(step podstate.Step, err error) string {
	switch step.(type) {
	case podstate.EnsureImage:
		return podutil.ReasonErrImagePull
	case podstate.CreateContainer:
		if _, ok := errors.AsType[*cri.Error](err); !ok {
			return podutil.ReasonCreateContainerConfig // the runtime was not called
		}
		return podutil.ReasonCreateContainer
	case podstate.StartContainer:
		return podutil.ReasonRunContainer
	case podstate.PostStart:
		if !cri.IsUnavailable(err) { // otherwise the hook has not failed: it has not run
			return podutil.ReasonPostStartHook
		}
	}
	return ""
}
