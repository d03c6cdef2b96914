package agent

import (
	"cmp"
	"context"
	"log/slog"
	"math"
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
	// snapshot is the runtime's last answer, less what was removed since. changed lists instances whose state may have
	// changed since. If stale is set, any instance may have, and there may be new ones.
	snapshot *cri.Snapshot
	changed  []cri.Instance
	stale    bool

	// sandboxes and containers are in the order of the snapshot.
	sandboxes  []podstate.Sandbox
	containers []podstate.Container
	// instances are what was read once of each container, by ID; nil before the first look at what the runtime lists.
	instances map[string]*instance
	// logged is Observed.Logged; nil if it has to be read.
	logged map[string]uint32
}

// instance is what is read once of a container in the runtime.
type instance struct {
	// made is how it was made. messageFile is the path on the host of its termination message, empty if it has none.
	made        spec.ContainerFacts
	messageFile string
	// ended is when it ended, on the agent's own clock, and message its termination message. Both are set when the end is
	// first seen; until then ended is zero.
	ended   time.Time
	message string
	// linked: its log has been linked for log collectors.
	linked bool
}

// listedFacts are the facts about a pod that has just got its first worker. What the runtime has not listed of it does
// not exist: only a worker makes instances. The late answer to a call of an earlier agent is found by a later list.
func listedFacts(pod types.UID, listed cri.PodSummary) runtimeFacts {
	return runtimeFacts{snapshot: &cri.Snapshot{UID: pod}, changed: slices.Clip(listed.Instances)}
}

// made returns how an instance was made; the zero value if it is gone.
func (f *runtimeFacts) made(id string) (out spec.ContainerFacts) {
	if i := f.instances[id]; i != nil {
		out = i.made
	}
	return out
}

// outdate notes what may be in another state in the runtime now that a step has ended. After a failure that may be
// everything: the answer to the call may have been lost, and the next step depends on what the runtime really has.
func (f *runtimeFacts) outdate(r podstate.Result, log *slog.Logger) {
	var i cri.Instance
	removed := false
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
	case podstate.RemoveSandbox:
		i.Sandbox, removed = s.ID, true
	case podstate.RemoveContainer:
		i.Container, removed = s.ID, true
	default:
		return
	}
	switch {
	case i == (cri.Instance{}) || r.Problem != nil:
		f.stale = true
	case removed:
		f.read(f.snapshot.Without(i), log)
	default:
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
	f.stale, f.changed = false, nil
	f.read(snapshot, log)
	return nil
}

// read turns the newest snapshot into facts.
func (f *runtimeFacts) read(s *cri.Snapshot, log *slog.Logger) {
	f.snapshot = s
	f.sandboxes = make([]podstate.Sandbox, len(s.Sandboxes))
	for i, box := range s.Sandboxes {
		f.sandboxes[i] = sandboxFact(box)
	}
	f.containers = make([]podstate.Container, 0, len(s.Containers))
	before := f.instances
	f.instances = make(map[string]*instance, len(s.Containers))
	for _, c := range s.Containers {
		i := before[c.Id]
		if i == nil {
			i = firstSeen(c, log)
		}
		dropRead(c.ContainerStatus)
		f.instances[c.Id] = i
		f.containers = append(f.containers, i.fact(c))
	}
}

// dropRead drops what was read of a new status and may be as large as the rest of the pod. It does not write to one
// that other goroutines have already.
func dropRead(s *runtimeapi.ContainerStatus) {
	if s.Labels != nil || s.Annotations != nil || s.Mounts != nil {
		s.Labels, s.Annotations = nil, nil
		s.Mounts = nil
	}
}

// firstSeen returns what is read of c, which no snapshot has had before.
func firstSeen(c cri.Container, log *slog.Logger) *instance {
	made, err := spec.ParseContainer(c.Labels, c.Annotations)
	if err != nil {
		log.Warn("cannot read all labels and annotations of a container", "container", c.Id, "err", err)
	}
	return &instance{made: made, messageFile: messageFile(c, made)}
}

// readySandbox returns the sandbox in which containers run; nil if there is none.
func (f *runtimeFacts) readySandbox() *podstate.Sandbox {
	for i := range f.sandboxes { // the newest first
		if f.sandboxes[i].Ready {
			return &f.sandboxes[i]
		}
	}
	return nil
}

func sandboxFact(s *runtimeapi.PodSandboxStatus) podstate.Sandbox {
	out := podstate.Sandbox{
		ID: s.Id, Attempt: s.GetMetadata().GetAttempt(),
		Ready: s.State == runtimeapi.PodSandboxState_SANDBOX_READY, Handler: s.RuntimeHandler,
	}
	if options := s.GetLinux().GetNamespaces().GetOptions(); options.GetNetwork() == runtimeapi.NamespaceMode_NODE {
		out.Network = podstate.NetworkHost
	} else if options != nil {
		out.Network = podstate.NetworkPod
	}
	if ip := s.GetNetwork().GetIp(); ip != "" {
		out.IPs = append(out.IPs, ip)
	}
	for _, more := range s.GetNetwork().GetAdditionalIps() {
		out.IPs = append(out.IPs, more.GetIp())
	}
	return out
}

// fact returns the state of the instance, which is c in the runtime.
func (i *instance) fact(c cri.Container) podstate.Container {
	out := podstate.Container{
		ID: c.Id, Name: i.made.Name, SandboxID: c.SandboxID, Attempt: c.GetMetadata().GetAttempt(), State: stateFact(c.State),
		StartedAt: moment(c.StartedAt), FinishedAt: moment(c.FinishedAt),
		ExitCode: c.ExitCode, Reason: c.Reason, Message: c.Message,
		Image:   cmp.Or(c.GetImage().GetUserSpecifiedImage(), c.GetImage().GetImage()),
		ImageID: c.GetImageRef(), Hash: i.made.Hash, Made: i.made.Resources, PreStop: i.made.PreStop != nil,
	}
	if r := c.GetResources().GetLinux(); r != nil {
		size := spec.SizeOf(r)
		out.Size = &size
	}
	out.User = userFact(c.GetUser().GetLinux())
	if out.State == podstate.ContainerExited {
		i.end(c)
		out.Message, out.EndedAt = i.message, i.ended
	}
	return out
}

// userFact returns the user of a container, nil if it is not known. The API server refuses the status of the pod if an
// ID is not in its range, which is smaller than that of an image: such a user is left out.
func userFact(u *runtimeapi.LinuxContainerUser) *corev1.ContainerUser {
	noGroup := func(id int64) bool { return id < 0 || id > math.MaxInt32 }
	if u == nil || u.Uid < 0 || u.Uid > math.MaxUint32 || noGroup(u.Gid) ||
		slices.ContainsFunc(u.SupplementalGroups, noGroup) {
		return nil
	}
	return &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{
		UID:                u.Uid,
		GID:                u.Gid,
		SupplementalGroups: u.SupplementalGroups,
	}}
}

// end notes that the instance, which is c in the runtime, has ended.
func (i *instance) end(c cri.Container) {
	if i.ended.IsZero() {
		now := time.Now()
		i.ended = now.Add(-max(0, now.Sub(moment(c.FinishedAt))))
		i.message = i.terminationMessage(c)
	}
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

// moment converts a CRI time: nanoseconds since the epoch, 0 for never. Less is that of a runtime's zero time.
func moment(ns int64) time.Time {
	if ns <= 0 {
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
