package agent

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cri"
)

// runtimeFacts are the runtime's facts about one pod in the form that plan needs, with what is read once and does not
// change.
type runtimeFacts struct {
	// snapshot is the runtime's last answer; nil before the first. The changed instances may be in another state since,
	// and all if it is stale.
	snapshot *cri.Snapshot
	changed  []cri.Instance
	stale    bool

	sandboxes  []podstate.Sandbox
	containers []podstate.Container
	// made is how each instance was made, by ID; messages are the termination messages of exited ones.
	made     map[string]spec.ContainerFacts
	messages map[string]string
	// exits is when the instances ended, by ID, on the agent's own clock.
	exits map[string]time.Time
	// linked marks the instances, by ID, whose logs have been linked for log collectors.
	linked map[string]bool
}

func newRuntimeFacts() runtimeFacts {
	return runtimeFacts{
		stale:    true,
		made:     map[string]spec.ContainerFacts{},
		messages: map[string]string{},
		exits:    map[string]time.Time{},
		linked:   map[string]bool{},
	}
}

// outdate notes what may be in another state in the runtime now that a step has ended. After a failure and after a
// removal that may be everything: the answer to the call may have been lost, and the next step depends on what the
// runtime really has.
func (f *runtimeFacts) outdate(r podstate.Result) {
	var i cri.Instance
	switch s := r.Step.(type) {
	case podstate.CreateSandbox:
		i.Sandbox = r.ID
	case podstate.StopSandbox:
		i.Sandbox = s.ID
	case podstate.CreateContainer:
		i = cri.Instance{Sandbox: s.SandboxID, Container: r.ID}
	case podstate.StartContainer:
		i.Container = s.ID
	case podstate.StopContainer:
		i.Container = s.ID
	case podstate.Resize:
		i.Container = s.ID
	case podstate.RemoveSandbox, podstate.RemoveContainer:
	default:
		return
	}
	if i == (cri.Instance{}) || r.Problem != nil {
		f.stale = true
	} else {
		f.changed = append(f.changed, i)
	}
}

// outdated reports whether the runtime may show the pod in another state than the last snapshot.
func (f *runtimeFacts) outdated() bool { return f.stale || len(f.changed) > 0 }

// update asks the runtime for what may have changed.
func (f *runtimeFacts) update(ctx context.Context, runtime Runtime, pod types.UID, log *slog.Logger) (err error) {
	snapshot := f.snapshot
	if f.stale {
		snapshot, err = runtime.Snapshot(ctx, pod, snapshot)
	} else {
		snapshot, err = runtime.Update(ctx, snapshot, f.changed)
	}
	if err != nil {
		return err
	}
	f.snapshot, f.stale = snapshot, false
	f.changed = nil
	f.read(snapshot, log)
	return nil
}

// read turns a snapshot into facts.
func (f *runtimeFacts) read(s *cri.Snapshot, log *slog.Logger) {
	f.sandboxes = make([]podstate.Sandbox, len(s.Sandboxes))
	for i, box := range s.Sandboxes {
		f.sandboxes[i] = sandboxFact(box)
	}
	f.containers = make([]podstate.Container, 0, len(s.Containers))
	for _, c := range s.Containers {
		made, known := f.made[c.Id]
		if !known {
			var err error
			if made, err = spec.ParseContainer(c.Labels, c.Annotations); err != nil {
				log.Warn("cannot read all labels and annotations of a container", "container", c.Id, "err", err)
			}
			f.made[c.Id] = made
		}
		f.containers = append(f.containers, f.container(c, made))
	}
	forget(f.made, s.Containers)
	forget(f.messages, s.Containers)
	forget(f.exits, s.Containers)
	forget(f.linked, s.Containers)
}

// forget drops what was read of instances that no longer exist.
func forget[V any](read map[string]V, all []cri.Container) {
	maps.DeleteFunc(read, func(id string, _ V) bool {
		return !slices.ContainsFunc(all, func(c cri.Container) bool { return c.Id == id })
	})
}

func sandboxFact(s *runtimeapi.PodSandboxStatus) podstate.Sandbox {
	out := podstate.Sandbox{
		ID: s.Id, Attempt: s.GetMetadata().GetAttempt(),
		Ready: s.State == runtimeapi.PodSandboxState_SANDBOX_READY, Handler: s.RuntimeHandler,
	}
	if ip := s.GetNetwork().GetIp(); ip != "" {
		out.IPs = append(out.IPs, ip)
	}
	for _, more := range s.GetNetwork().GetAdditionalIps() {
		out.IPs = append(out.IPs, more.GetIp())
	}
	return out
}

func (f *runtimeFacts) container(c cri.Container, made spec.ContainerFacts) podstate.Container {
	out := podstate.Container{
		ID: c.Id, Name: made.Name, SandboxID: c.SandboxID, Attempt: c.GetMetadata().GetAttempt(), State: stateFact(c.State),
		StartedAt: moment(c.StartedAt), FinishedAt: moment(c.FinishedAt),
		ExitCode: c.ExitCode, Reason: c.Reason, Message: c.Message,
		Image: c.GetImage().GetUserSpecifiedImage(), ImageID: c.GetImageRef(), Hash: made.Hash, Made: made.Resources,
	}
	if r := c.GetResources().GetLinux(); r != nil {
		size := spec.SizeOf(r)
		out.Size = &size
	}
	if out.Image == "" {
		out.Image = c.GetImage().GetImage()
	}
	if u := c.GetUser().GetLinux(); u != nil {
		out.User = &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{
			UID:                u.Uid,
			GID:                u.Gid,
			SupplementalGroups: u.SupplementalGroups,
		}}
	}
	if out.State == podstate.ContainerExited {
		out.Message = f.message(c, made)
		out.EndedAt = f.ended(c.Id, out.FinishedAt)
	}
	return out
}

// ended returns when an instance ended on the agent's monotonic clock. It is fixed when the end is first seen.
func (f *runtimeFacts) ended(id string, finished time.Time) time.Time {
	at, seen := f.exits[id]
	if !seen {
		now := time.Now()
		at = now.Add(-max(0, now.Sub(finished)))
		f.exits[id] = at
	}
	return at
}

func stateFact(s runtimeapi.ContainerState) podstate.ContainerState {
	switch s {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		return podstate.ContainerCreated
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return podstate.ContainerRunning
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return podstate.ContainerExited
	}
	return podstate.ContainerUnknown
}

// moment converts a CRI time: nanoseconds since the epoch, 0 for never.
func moment(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// endings collects instances that may have ended, until the next sync.
type endings struct {
	mu        sync.Mutex
	instances []cri.Instance
}

func (e *endings) add(i cri.Instance) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.instances = append(e.instances, i)
}

func (e *endings) take() []cri.Instance {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := e.instances
	e.instances = nil
	return all
}
