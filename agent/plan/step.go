package plan

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Step is one act on the world. The set of steps is closed: agent/execute.go maps each to a hand in one type switch.
type Step interface {
	// Key names what the step acts on. While a step is in flight no other with its key starts; failures are remembered by it.
	Key() string
	// String reads well in logs and golden files.
	String() string
	sealed()
}

type (
	// Prepare makes the pod's directories and cgroup.
	Prepare struct{}
	// PrepareClaims prepares the pod's resource claims.
	PrepareClaims struct{}
	// Mount sets up one volume, or refreshes its content.
	Mount struct{ Volume string }
	// CreateSandbox runs the pod's sandbox (CRI RunPodSandbox).
	CreateSandbox struct{ Attempt uint32 }
	// EnsureImage makes an image present, by its pull policy: that of a container, or that of an image volume, which has a
	// Volume and no Container.
	EnsureImage struct {
		Container string
		Volume    string
		Attempt   uint32
		Image     string
		Policy    corev1.PullPolicy
	}
	// CreateContainer makes an instance of a container (CRI CreateContainer).
	CreateContainer struct {
		Name    string
		Attempt uint32
		// SandboxID is the sandbox it belongs to.
		SandboxID string
		// Backoff is how long after this instance has ended the next may be made.
		Backoff time.Duration
	}
	// StartContainer starts a created container (CRI StartContainer).
	StartContainer struct{ ID, Name string }
	// PostStart runs the postStart hook of a container that has just been started.
	PostStart struct{ ID, Name string }
	// StopContainer runs the preStop hook and stops the container (CRI StopContainer). What is alive at Deadline is killed.
	StopContainer struct {
		ID, Name string
		Deadline time.Time
		// Reason tells people why, and becomes the Killing event.
		Reason string
		// Replace: a new instance follows whatever the restart policy says, for its spec has changed.
		Replace bool
		// Unhealthy: its startup or liveness probe has failed.
		Unhealthy bool
	}
	// RemoveContainer removes a dead container that nobody needs (CRI RemoveContainer).
	RemoveContainer struct {
		ID, Name string
		// KeepLog leaves its log until the pod goes.
		KeepLog bool
	}
	// NoteReset notes in the pod's directory that its containers go so that all can start anew, or takes the note away.
	NoteReset struct{ Over bool }
	// StopSandbox stops a sandbox and returns its network (CRI StopPodSandbox).
	StopSandbox struct {
		ID      string
		Attempt uint32
	}
	// RemoveSandbox removes a stopped sandbox with the containers in it (CRI RemovePodSandbox).
	RemoveSandbox struct {
		ID      string
		Attempt uint32
	}
	// Resize gives a running container other resources (CRI UpdateContainerResources).
	Resize struct {
		ID, Name string
		To       Size
		// Resources are what To follows from.
		Resources *corev1.ResourceRequirements
		// LowersMemory: the new limit must not be below what the container uses.
		LowersMemory bool
	}
	// ResizePod gives the pod's cgroup another size.
	ResizePod struct {
		To           Size
		LowersMemory bool
	}
	// Unmount takes down one volume.
	Unmount struct{ Volume string }
	// UnprepareClaims gives the pod's resource claims back.
	UnprepareClaims struct{}
	// RemoveCgroup removes the pod's cgroup.
	RemoveCgroup struct{}
	// RemoveDir removes the pod's directory and, where the pod is gone for good, its logs.
	RemoveDir struct{}
)

func (Prepare) Key() string           { return "prepare" }
func (PrepareClaims) Key() string     { return keyPrepareClaims }
func (s Mount) Key() string           { return "mount " + s.Volume }
func (CreateSandbox) Key() string     { return "create sandbox" }
func (s EnsureImage) Key() string     { return "image " + s.For() }
func (s CreateContainer) Key() string { return "create " + s.Name }
func (s StartContainer) Key() string  { return "start " + s.ID }
func (s PostStart) Key() string       { return "poststart " + s.ID }
func (s StopContainer) Key() string   { return "stop " + s.ID }
func (s RemoveContainer) Key() string { return "remove " + s.ID }
func (NoteReset) Key() string         { return "note reset" }
func (s StopSandbox) Key() string     { return "stop " + s.ID }
func (s RemoveSandbox) Key() string   { return "remove " + s.ID }
func (s Resize) Key() string          { return "resize " + s.ID }
func (ResizePod) Key() string         { return "resize pod" }
func (s Unmount) Key() string         { return "unmount " + s.Volume }
func (UnprepareClaims) Key() string   { return keyUnprepareClaims }
func (RemoveCgroup) Key() string      { return "remove cgroup" }
func (RemoveDir) Key() string         { return "remove dir" }

func (Prepare) String() string         { return "prepare directories and cgroup" }
func (PrepareClaims) String() string   { return "prepare resource claims" }
func (s Mount) String() string         { return fmt.Sprintf("mount volume %s", s.Volume) }
func (s CreateSandbox) String() string { return fmt.Sprintf("create sandbox attempt %d", s.Attempt) }
func (s EnsureImage) String() string {
	if s.Volume != "" {
		return fmt.Sprintf("ensure image %s (%s) of volume %s", s.Image, s.Policy, s.Volume)
	}
	return fmt.Sprintf("ensure image %s (%s) for %s attempt %d", s.Image, s.Policy, s.Container, s.Attempt)
}
func (s CreateContainer) String() string {
	return fmt.Sprintf("create container %s attempt %d in %s", s.Name, s.Attempt, s.SandboxID)
}
func (s StartContainer) String() string { return fmt.Sprintf("start container %s (%s)", s.Name, s.ID) }
func (s PostStart) String() string {
	return fmt.Sprintf("run postStart hook of %s (%s)", s.Name, s.ID)
}
func (s StopContainer) String() string {
	return fmt.Sprintf("stop container %s (%s): %s", s.Name, s.ID, s.Reason)
}
func (s RemoveContainer) String() string {
	return fmt.Sprintf("remove container %s (%s)", s.Name, s.ID)
}
func (s NoteReset) String() string {
	if s.Over {
		return "forget that all containers were to start anew"
	}
	return "note that all containers start anew"
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

// The keys of steps that wait for what others bring.
const (
	keyPrepareClaims   = "prepare claims"
	keyUnprepareClaims = "unprepare claims"
)

// For names what the image is for: the container, or the volume in a form that no container is called by.
func (s EnsureImage) For() string {
	if s.Volume != "" {
		return imageVolume(s.Volume)
	}
	return s.Container
}

func imageVolume(name string) string { return "volume " + name }

func (Prepare) sealed()         {}
func (PrepareClaims) sealed()   {}
func (Mount) sealed()           {}
func (CreateSandbox) sealed()   {}
func (EnsureImage) sealed()     {}
func (CreateContainer) sealed() {}
func (StartContainer) sealed()  {}
func (PostStart) sealed()       {}
func (StopContainer) sealed()   {}
func (RemoveContainer) sealed() {}
func (NoteReset) sealed()       {}
func (StopSandbox) sealed()     {}
func (RemoveSandbox) sealed()   {}
func (Resize) sealed()          {}
func (ResizePod) sealed()       {}
func (Unmount) sealed()         {}
func (UnprepareClaims) sealed() {}
func (RemoveCgroup) sealed()    {}
func (RemoveDir) sealed()       {}

// outdates tells whether running, of the same key as next, works for something that nobody wants any more.
func outdates(next, running Step) bool {
	_, image := next.(EnsureImage)
	return image && next != running
}

// Overtakes tells whether step may start although running, which has the same key, is in flight. Only a stop with a nearer
// deadline may.
func Overtakes(step, running Step) bool {
	next, ok := step.(StopContainer)
	if !ok {
		return false
	}
	old, ok := running.(StopContainer)
	return ok && next.Deadline.Before(old.Deadline)
}
