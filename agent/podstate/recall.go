package podstate

import (
	"maps"
	"slices"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Recall is a read-only view of a Memory: code that decides cannot change the Memory through it. The zero Recall is a
// view of an empty Memory.
type Recall struct{ m *Memory }

// Recall returns a read-only view of the memory. The view also shows later changes.
func (m *Memory) Recall() Recall { return Recall{m} }

var nothing = Memory{}

func (r Recall) memory() *Memory {
	if r.m == nil {
		return &nothing
	}
	return r.m
}

// Prepared reports whether the pod's directories and cgroup exist.
func (r Recall) Prepared() bool { return r.memory().Prepared }

// ClaimsPrepared reports whether this run of the agent has prepared the pod's resource claims.
func (r Recall) ClaimsPrepared() bool { return r.memory().ClaimsPrepared }

// InFlight returns the step in flight with that key; nil if there is none.
func (r Recall) InFlight(key Key) Step { return r.memory().InFlight[key] }

// Starting reports whether a container is being started.
func (r Recall) Starting(id string) bool { return r.InFlight(StartContainer{ID: id}.Key()) != nil }

// Removing reports whether the removal of a container has begun. It may take effect at any later time, also if it has
// failed.
func (r Recall) Removing(id string) bool {
	removal := RemoveContainer{ID: id}
	_, failed := r.Failure(removal.Key())
	_, done := r.Succeeded(removal)
	return failed || done || r.InFlight(removal.Key()) != nil
}

// Running returns the steps in flight, in the order of their keys.
func (r Recall) Running() []Step {
	inFlight := r.memory().InFlight
	all := slices.AppendSeq(make([]Step, 0, len(inFlight)), maps.Values(inFlight))
	sort.Slice(all, func(i, j int) bool { return all[i].Key().Compare(all[j].Key()) < 0 })
	return all
}

// Progress says of a step in flight that it is, with the error of the last attempt if that failed.
func (r Recall) Progress(s Step) string {
	if f, failed := r.Failure(s.Key()); failed && f.Holds(s) {
		return "in progress; the last attempt failed: " + f.Message
	}
	return "in progress"
}

// Runs reports whether a step of a kind is in flight.
func (r Recall) Runs(kind Kind) bool {
	for key := range r.memory().InFlight {
		if key.Kind == kind {
			return true
		}
	}
	return false
}

// Failure returns the last failure of a step with that key, unless such a step has succeeded since. The creation of an
// instance has also failed if the runtime has removed it because it did not start. The one that waits longer counts.
func (r Recall) Failure(key Key) (f Failure, failed bool) {
	f, failed = r.memory().Failures[key]
	if key.Kind == KindCreateContainer {
		if start, unstarted := r.Unstarted(key.Target); unstarted && f.Retry().Before(start.Retry()) {
			return start, true
		}
	}
	return f, failed
}

// Unstarted returns the last failed start of an instance that the runtime has removed since, unless the container has
// started since.
func (r Recall) Unstarted(container string) (f Failure, failed bool) {
	f, failed = r.memory().Unstarted[container]
	return f, failed
}

// MountFails reports whether the mount of a volume has failed, and the volume is still not mounted.
func (r Recall) MountFails() bool {
	for key := range r.memory().Failures {
		if _, mounted := r.Volume(key.Target); key.Kind == KindMount && !mounted {
			return true
		}
	}
	return false
}

// FailedImage returns the failure of an image that a container needs: its own image, or that of an image volume that it
// mounts.
func (r Recall) FailedImage(pod *corev1.Pod, c *corev1.Container) (f Failure, failed bool) {
	if f, failed = r.Failure(EnsureImage{Container: c.Name}.Key()); failed && f.Image == c.Image {
		return f, true
	}
	for vol := range ImageVolumes(pod, c) {
		if f, failed = r.Failure(EnsureImage{Volume: vol.Name}.Key()); failed && f.Image == vol.Image.Reference {
			return f, true
		}
	}
	return Failure{}, false
}

// Succeeded returns when the same step last succeeded, if Memory.Successes still holds it.
func (r Recall) Succeeded(step Step) (at time.Time, done bool) {
	c, done := r.memory().Successes[step.Key()]
	return c.At, done && SameStep(c.Step, step)
}

// Volume returns a mounted volume.
func (r Recall) Volume(name string) (v Volume, mounted bool) {
	v, mounted = r.memory().Volumes[name]
	return v, mounted
}

// Image returns the last image that was ensured for the same container or volume as that of step; empty if there is
// none.
func (r Recall) Image(step EnsureImage) Image { return r.memory().Images[step.Key()] }

// PullAgainAfter is how long after its pull an image with the policy Always is pulled again before it is used. It is
// longer than the back-off of a creation, before which the image was pulled again.
const PullAgainAfter = 2 * time.Minute

// PulledLongAgo reports whether an image with the policy Always was ensured so long ago that its name may mean another
// one by now.
func (r Recall) PulledLongAgo(step EnsureImage, now time.Time) bool {
	return step.Policy == corev1.PullAlways && now.Sub(r.Image(step).At) > PullAgainAfter
}

// Instance returns what is remembered of a container; the zero value if that is nothing.
func (r Recall) Instance(id string) InstanceMemory {
	if i := r.memory().Instances[id]; i != nil {
		return *i
	}
	return InstanceMemory{}
}

// backoff returns the back-off that was set for the end of an instance. It is known for the newest instances whose
// creation this run of the agent has begun.
func (r Recall) backoff(i Instance) (delay time.Duration, known bool) {
	delay, known = r.memory().Restarts[i]
	return delay, known
}

// sandboxStopped reports whether this run of the agent has stopped a sandbox, which releases its network.
func (r Recall) sandboxStopped(id string) bool { return r.memory().StoppedSandboxes[id] }

// endStop returns the stop of an instance that the agent has begun because the pod ends; c may be nil.
func (r Recall) endStop(c *Container) (stop StopContainer, begun bool) {
	if c == nil {
		return stop, false
	}
	stop = r.Instance(c.ID).Stop
	return stop, stop.ID != "" && stop.Cause == CauseEnd
}

// PodSize returns the size of the pod's cgroup, if the pod has a cgroup and its size is known.
func (r Recall) PodSize() (size Size, known bool) {
	if p := r.memory().PodSize; p != nil {
		return *p, true
	}
	return Size{}, false
}

// Reported returns the status that was published last; nil at first. The caller must not change it.
func (r Recall) Reported() *corev1.PodStatus { return r.memory().Reported }

// reportedContainer returns a container's status in the pod status that was published last; nil if there is none.
func (r Recall) reportedContainer(name string) *corev1.ContainerStatus {
	if r.Reported() == nil {
		return nil
	}
	return podutil.ContainerStatus(r.Reported(), name)
}
