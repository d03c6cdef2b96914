package podstate

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Step is one action on the node. The set of steps is fixed: agent/execute has one type switch over all of them.
// Steps are comparable values.
type Step interface {
	// Key identifies what the step acts on. While a step is in flight, no other step with the same key begins (but see
	// Overtakes). Failures are recorded by key.
	Key() Key
	// String describes the step for logs and golden files. No decision depends on it.
	String() string
}

// TakesAway reports whether a step takes away what is prepared for a pod beside its sandboxes and containers.
func TakesAway(step Step) bool {
	switch step.(type) {
	case UnprepareClaims, Unmount, RemoveCgroup, RemoveDir:
		return true
	}
	return false
}

type (
	// Prepare creates the pod's directories and cgroup.
	Prepare struct{}
	// PrepareClaims prepares the pod's resource claims.
	PrepareClaims struct{}
	// Mount sets up one volume, or refreshes its content.
	Mount struct{ Volume string }
	// CreateSandbox runs the pod's sandbox (CRI RunPodSandbox).
	CreateSandbox struct{ Attempt uint32 }
	// EnsureImage ensures that an image is present, according to the pull policy. It is the image of a container, or
	// that of an image volume: then Volume is set and Container is empty.
	EnsureImage struct {
		Container string
		Volume    string
		Attempt   uint32
		Image     string
		Policy    corev1.PullPolicy
		// Look only looks whether the image is on the node now, because its pull is in back-off.
		Look bool
	}
	// CreateContainer creates an instance of a container (CRI CreateContainer).
	CreateContainer struct {
		Name    string
		Attempt uint32
		// SandboxID is the sandbox it belongs to.
		SandboxID string
		// Backoff is how long after the end of this instance the next may be created.
		Backoff time.Duration
		// Target is the ID of the running container whose processes an ephemeral container shares; empty if there is none.
		Target string
	}
	// StartContainer starts a created container (CRI StartContainer).
	StartContainer struct{ ID, Name string }
	// PostStart runs the postStart hook of a container that has just been started.
	PostStart struct{ ID, Name string }
	// PreStop runs the preStop hook of a container, and begins its stop so. The StopContainer waits for it until
	// Deadline, and the hook is cancelled when the container has ended.
	PreStop StopContainer
	// StopContainer stops the container (CRI StopContainer). It is killed at Deadline.
	StopContainer struct {
		ID, Name string
		Deadline time.Time
		Cause    Cause
		// Reason is the message of the Killing event. No decision depends on it.
		Reason string
	}
	// RemoveContainer removes an exited container that is not needed any more (CRI RemoveContainer).
	RemoveContainer struct {
		ID, Name string
		// KeepLog leaves its log until the pod is removed.
		KeepLog bool
	}
	// MarkReset writes the marker file of a reset (RestartAllContainers) to the pod's directory. ResetUnmarked removes
	// the file.
	MarkReset struct{ Mark ResetMark }
	// StopSandbox stops a sandbox and releases its network (CRI StopPodSandbox).
	StopSandbox struct {
		ID      string
		Attempt uint32
	}
	// RemoveSandbox removes a stopped sandbox with the containers in it (CRI RemovePodSandbox).
	RemoveSandbox struct {
		ID      string
		Attempt uint32
	}
	// Resize changes the resources of a running container (CRI UpdateContainerResources).
	Resize struct {
		ID, Name string
		To       Size
		// LowersMemory: the new memory limit is lower, so it must not be below the current usage of the container.
		LowersMemory bool
	}
	// ResizePod changes the size of the pod's cgroup.
	ResizePod struct {
		To           Size
		LowersMemory bool
	}
	// Unmount unmounts one volume.
	Unmount struct{ Volume string }
	// UnprepareClaims releases the pod's resource claims.
	UnprepareClaims struct{}
	// RemoveCgroup removes the pod's cgroup.
	RemoveCgroup struct{}
	// RemoveDir removes the pod's directory and its logs.
	RemoveDir struct{}
)

func (Prepare) String() string         { return "prepare directories and cgroup" }
func (PrepareClaims) String() string   { return "prepare resource claims" }
func (s Mount) String() string         { return fmt.Sprintf("mount volume %s", s.Volume) }
func (s CreateSandbox) String() string { return fmt.Sprintf("create sandbox attempt %d", s.Attempt) }
func (s EnsureImage) String() string {
	verb := "ensure"
	if s.Look {
		verb = "look for"
	}
	if s.Volume != "" {
		return fmt.Sprintf("%s image %s (%s) of volume %s", verb, s.Image, s.Policy, s.Volume)
	}
	return fmt.Sprintf("%s image %s (%s) for %s attempt %d", verb, s.Image, s.Policy, s.Container, s.Attempt)
}
func (s CreateContainer) String() string {
	return fmt.Sprintf("create container %s attempt %d in %s", s.Name, s.Attempt, s.SandboxID)
}
func (s StartContainer) String() string { return fmt.Sprintf("start container %s (%s)", s.Name, s.ID) }
func (s PostStart) String() string {
	return fmt.Sprintf("run postStart hook of %s (%s)", s.Name, s.ID)
}
func (s PreStop) String() string {
	return fmt.Sprintf("run preStop hook of %s (%s)", s.Name, s.ID)
}
func (s StopContainer) String() string {
	return fmt.Sprintf("stop container %s (%s): %s", s.Name, s.ID, s.Reason)
}
func (s RemoveContainer) String() string {
	return fmt.Sprintf("remove container %s (%s)", s.Name, s.ID)
}
func (s MarkReset) String() string {
	if s.Mark == ResetUnmarked {
		return "remove the marker file of the reset"
	}
	return fmt.Sprintf("write the marker file of the reset: %s", s.Mark)
}
func (s StopSandbox) String() string {
	return fmt.Sprintf("stop sandbox attempt %d (%s)", s.Attempt, s.ID)
}
func (s RemoveSandbox) String() string {
	return fmt.Sprintf("remove sandbox attempt %d (%s)", s.Attempt, s.ID)
}
func (s Resize) String() string {
	return fmt.Sprintf("resize container %s (%s) to %s", s.Name, s.ID, s.To)
}
func (s ResizePod) String() string { return fmt.Sprintf("resize pod to %s", s.To) }
func (s Unmount) String() string   { return fmt.Sprintf("unmount volume %s", s.Volume) }
func (UnprepareClaims) String() string {
	return "unprepare resource claims"
}
func (RemoveCgroup) String() string { return "remove cgroup" }
func (RemoveDir) String() string    { return "remove pod directory" }

// Cause is why a container is stopped.
type Cause uint8

const (
	// CauseEnd: the pod ends, or the instance is not the one that should run.
	CauseEnd Cause = iota
	// CauseSpec: the instance was created from an older spec.
	CauseSpec
	// CauseResize: the resize policy requires a new instance.
	CauseResize
	// CauseProbe: the startup or liveness probe has failed.
	CauseProbe
	// CauseHook: the postStart hook has failed.
	CauseHook
	// CauseUnknown: the runtime does not know the state of the instance.
	CauseUnknown
	// CauseSandbox: the instance runs in a sandbox that is not usable any more, or not the newest one.
	CauseSandbox
	// CauseReset: all containers of the pod restart.
	CauseReset
)

// Replaces reports whether a new instance follows, regardless of the restart policy.
func (s StopContainer) Replaces() bool { return s.Cause == CauseSpec || s.Cause == CauseResize }

// unhealthy reports whether a failed probe is the cause.
func (s StopContainer) unhealthy() bool { return s.Cause == CauseProbe }

// interrupts reports whether the stop cuts off work that must be done again: a new instance follows, unless the restart
// policy is Never.
func (s StopContainer) interrupts() bool {
	return s.unhealthy() || s.Cause == CauseSandbox || s.Cause == CauseUnknown
}

// OfContainer reports whether the cause is one of the container alone, in a pod that goes on.
func (s StopContainer) OfContainer() bool {
	return s.Replaces() || s.unhealthy() || s.Cause == CauseHook
}

// Overtakes reports whether step may begin although running, a step with the same key, is in flight. Only a
// StopContainer with an earlier deadline may.
func Overtakes(step, running Step) bool {
	next, ok := step.(StopContainer)
	if !ok {
		return false
	}
	old, ok := running.(StopContainer)
	return ok && next.Deadline.Before(old.Deadline)
}
