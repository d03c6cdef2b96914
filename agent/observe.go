package agent

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cri"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// runtimeFacts are the runtime's facts about one pod in the form that plan needs, with what is read once and does not
// change.
type runtimeFacts struct {
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
		made:     map[string]spec.ContainerFacts{},
		messages: map[string]string{},
		exits:    map[string]time.Time{},
		linked:   map[string]bool{},
	}
}

// observe collects all facts about the pod. It asks the runtime only if its state may have changed.
func (w *worker) observe(ctx context.Context) (podstate.Observed, error) {
	if w.stale {
		w.explainObserving(nil)
		snapshot, err := w.cfg.Runtime.Snapshot(ctx, w.order.Pod.UID, w.snapshot)
		if err != nil {
			return podstate.Observed{}, err
		}
		if w.snapshot == nil && len(snapshot.Containers) > 0 && w.order.Stop == nil {
			w.cfg.Objects(w.order.Pod).Prime(w.order.Pod)
		}
		w.snapshot, w.stale = snapshot, false
		w.facts.read(snapshot, w.log)
		w.memory.See(w.facts.containers)
		w.linkLogs()
	}
	o := podstate.Observed{
		Now:        time.Now(),
		Sandboxes:  w.facts.sandboxes,
		Containers: w.facts.containers,
		Probes:     w.probeResults(),
		Memory:     w.memory.Recall(),
		Node:       w.cfg.planNode(newestReady(w.facts.sandboxes)),
	}
	o.ClaimsHeld = w.cfg.Claims.Holds(w.order.Pod.UID)
	o.DeviceHealth = w.cfg.deviceHealth(w.order.Pod)
	o.NetworkProblem = w.cfg.NetworkProblem(w.order.Pod.UID)
	if podutil.RestartsAll(&w.order.Pod.Spec) {
		mark, marked, err := w.cfg.PodFiles.ResetMark(w.order.Pod.UID)
		if err != nil && w.order.Stop == nil { // a pod that must end is not reset
			return o, err
		}
		if marked {
			o.ResetMark = podstate.ParseResetMark(mark)
		}
	}
	if plan.Clearing(w.order.Desired, o) {
		return o, w.observeDisk(&o)
	}
	return o, nil
}

// observeDisk adds what the pod has on the disk and in the cgroup tree. Only a pod whose containers have ended needs
// that: its containers are stopped also while the disk cannot be read.
func (w *worker) observeDisk(o *podstate.Observed) error {
	pod := w.order.Pod
	var err error
	if o.VolumesOnDisk, err = w.cfg.Steps.ListVolumes(pod.UID, &w.left); err != nil {
		return err
	}
	present, unknown := w.cfg.PodFiles.HasPodDir(pod.UID)
	if !present && unknown == nil {
		present, unknown = w.cfg.Logs.Has(pod.UID)
	}
	o.DirOnDisk = present || unknown != nil // the step that removes it reports why it cannot be read
	o.CgroupExists, err = w.cfg.Cgroups.Exists(pod)
	return err
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

// linkLogs links the logs of the instances that have started, once. It does not depend on the step that starts an
// instance: its answer may be lost, or the agent may be killed before it.
func (w *worker) linkLogs() {
	if w.order.Stop.Is(podstate.StopOrphaned) {
		return // the name of the pod may not be known
	}
	for i := range w.facts.containers {
		c := &w.facts.containers[i]
		if c.State == podstate.ContainerCreated || w.facts.linked[c.ID] {
			continue
		}
		w.facts.linked[c.ID] = true
		if err := w.cfg.Steps.LinkLog(w.order.Pod, c); err != nil {
			w.log.Warn("cannot link the log of a container for log collectors", "container", c.Name, "err", err)
		}
	}
}

// probeResults returns the newest results of the probes of the pod's containers.
func (w *worker) probeResults() map[string]podstate.ProbeResults {
	if len(w.reported.probed) == 0 {
		return nil
	}
	return w.cfg.Probes.Results(w.order.Pod.UID)
}

// deviceHealth returns the health of the devices of a pod, by container: nil for a pod without devices, an empty health
// for what is not known yet.
func (c *Config) deviceHealth(pod *corev1.Pod) map[string][]corev1.ResourceStatus {
	if !c.DeviceHealth {
		return nil
	}
	all := c.Devices.Health(pod.UID)
	for container, claimed := range c.Claims.Health(pod) {
		if all == nil {
			all = map[string][]corev1.ResourceStatus{}
		}
		all[container] = append(all[container], claimed...)
	}
	return all
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
