package podstate

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Desired is what the sources of pods ask for.
type Desired struct {
	// Pod is the newest object a source has delivered. It is never modified. Its Status is what the API server last
	// showed; a static pod's is its mirror's, or empty.
	Pod *corev1.Pod
	// Hashes are the hashes of the container specs by name, as agent/spec makes them: a running container
	// created from another spec is replaced.
	Hashes map[string]string
	// Grant is what is allocated to the pod; nil where nothing changes while it runs.
	Grant *Grant
	// Rejected is why admission refused the pod; nil for an admitted one.
	Rejected *Rejection
	// Reclaim: the node is short of disk, so what the runtime keeps of the pod is removed once the pod has ended.
	Reclaim bool
	// Stop is the one way to end a pod; nil while it should run. It can only become stricter.
	Stop *Stop
}

// Rejection is why admission refuses a pod. Reason and Message go into the status of the pod as the kubelet
// writes them, for example OutOfcpu or NodeAffinity.
type Rejection struct {
	Reason  string
	Message string
}

// StopCause says why a pod must end, weakest first.
type StopCause int

const (
	// StopEvicted: the node, its shutdown or a preemption ends the pod; the API object stays, with phase Failed.
	StopEvicted StopCause = iota
	// StopDeleted: the API object has a deletion timestamp; it is deleted once the pod is torn down.
	StopDeleted
	// StopOrphaned: no source has the pod any more, so all its traces are removed.
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
	// Deadline is when containers that have not ended by themselves are killed.
	Deadline time.Time
	// Reason and Message go into the pod status where the cause is StopEvicted, for example Evicted or Terminated.
	Reason  string
	Message string
	// Own: the pod itself is the cause, so that its end is no disruption by the node.
	Own bool
}

// Stricter merges a later stop into an earlier one: the cause only grows, the deadline only comes nearer.
// It returns s itself where next asks for no more.
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
	}
	return &merged
}
