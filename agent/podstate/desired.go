package podstate

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Desired is what the sources of pods ask for.
type Desired struct {
	// Pod is the newest object that a source has delivered. It is never modified. Its Status is the last one received
	// from the API server; for a static pod it is that of the mirror pod, or empty.
	Pod *corev1.Pod
	// Hashes are the hashes of the container specs by name, as agent/spec computes them. A running container that was
	// created from another spec is replaced.
	Hashes map[string]string
	// Allocation holds the resources allocated to the pod; nil if they do not change while the pod runs.
	Allocation *Allocation
	// DevicesMissing is why the devices that an earlier run of the agent has allocated to the pod cannot be used yet, as
	// after a reboot; empty if they can, which does not change any more. Until then nothing is prepared for the pod.
	DevicesMissing string
	// Rejected is the reason why admission rejected the pod; nil for an admitted one.
	Rejected *Rejection
	// Reclaim: the node is short of disk space, so the containers and sandboxes of the pod are removed once it has
	// ended.
	Reclaim bool
	// Stop requests the end of the pod; nil while it should run. It can only become stricter.
	Stop *Stop
	// Returns: a source has an orphaned pod again, such as a manifest that was put back. It starts again once it has
	// ended.
	Returns bool
}

// Rejection is the reason why admission rejects a pod. Reason and Message become part of the pod's status and are the
// kubelet's, for example OutOfcpu or NodeAffinity. It is an error of the functions that give a pod what it requests for
// itself.
type Rejection struct {
	Reason  string
	Message string
}

func (r *Rejection) Error() string { return r.Message }

// Rejected returns why a pod is rejected that cannot get what it requests for itself: err if it is a Rejection, else
// the kubelet's reason and message for an unexpected error.
func Rejected(err error) *Rejection {
	if r, ok := errors.AsType[*Rejection](err); ok {
		return r
	}
	return &Rejection{
		Reason:  podutil.ReasonUnexpectedAdmission,
		Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err),
	}
}

// StopCause is the cause why a pod must end, weakest first.
type StopCause int

const (
	// StopEvicted: the node, its shutdown or a preemption ends the pod; the API object stays, see Fails.
	StopEvicted StopCause = iota
	// StopDeleted: the API object has a deletion timestamp; it is deleted once the pod is torn down.
	StopDeleted
	// StopOrphaned: no source has the pod any more, so everything on the node that belongs to it is removed.
	StopOrphaned
)

func (c StopCause) String() string {
	switch c {
	case StopEvicted:
		return "evicted"
	case StopDeleted:
		return "deleted"
	case StopOrphaned:
		return "orphaned"
	}
	return "unknown"
}

// Stop ends a pod.
type Stop struct {
	Cause StopCause
	// Deadline is when containers that still run are killed.
	Deadline time.Time
	// Reason and Message become part of the pod's status, for example Evicted or Terminated. Both are empty if only its
	// source, or its own completion, ends the pod.
	Reason  string
	Message string
	// Own: the pod itself is the cause, so its end does not count as a disruption by the node.
	Own bool
	// New: no earlier run of the agent has begun to end the pod for this reason.
	New bool
}

// EndGrace returns how long the containers of a pod that ends get, for the grace period that was asked for. It is at
// least one second: without any time a preStop hook would not run, and an application would lose what it flushes there.
// The kubelet gives this second to each end of a pod, but not to a container that only restarts.
func EndGrace(asked time.Duration) time.Duration { return max(asked, time.Second) }

// Is reports whether the pod must end for a cause; s is nil if it need not end.
func (s *Stop) Is(cause StopCause) bool { return s != nil && s.Cause == cause }

// Fails reports whether the pod fails, whatever its containers return. A preempted pod succeeds if all return 0.
func (s *Stop) Fails() bool {
	return s.Is(StopEvicted) && s.Reason != "" && s.Reason != podutil.ReasonPreempting
}

// Stricter merges a later stop into an earlier one: it takes the stronger cause and the earlier deadline. If s has no
// reason, that of an earlier deadline is taken, too. It returns s itself if next is not stricter.
func (s *Stop) Stricter(next *Stop) *Stop {
	switch {
	case s == nil:
		return next
	case next == nil, next.Cause <= s.Cause && !next.Deadline.Before(s.Deadline):
		return s
	}
	merged := *s
	merged.Cause = max(s.Cause, next.Cause)
	if next.Deadline.Before(s.Deadline) {
		merged.Deadline = next.Deadline
		if s.Reason == "" {
			merged.Reason, merged.Message = next.Reason, next.Message
			merged.Own, merged.New = next.Own, next.New
		}
	}
	return &merged
}
