package plan

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Memory is what one life of the agent remembers of a pod. The worker owns it and changes it through its methods alone;
// losing it (an agent crash) costs repeated idempotent work, never correctness.
type Memory struct {
	// Prepared: the pod's directories and cgroup have been made.
	Prepared bool
	// ClaimsPrepared: the pod's resource claims have been prepared.
	ClaimsPrepared bool
	// InFlight holds the running steps by key.
	InFlight map[Key]Step
	// Failures holds the last failure of each step key that has not succeeded since.
	Failures map[Key]Failure
	// Volumes are the mounted volumes by name.
	Volumes map[string]Volume
	// Images are the images made present, by the keys of EnsureImage.
	Images map[Key]Image
	// Started marks the containers, by ID, that this life of the agent has started: only those get a postStart hook.
	Started map[string]bool
	// Hooks holds the outcome of finished postStart hooks by container ID.
	Hooks map[string]Hook
	// Restarts holds the crash-loop back-offs: how long after the end of an instance the next may be made.
	Restarts map[Instance]time.Duration
	// StoppedSandboxes marks the sandboxes, by ID, whose network has been given back.
	StoppedSandboxes map[string]bool
	// Killed holds, by container ID, how the agent itself stopped a container.
	Killed map[string]StopContainer
	// Late marks the steps in flight, by key, that began before an object which they may have read has changed.
	Late map[Key]bool
	// PodSize is the size that the pod's cgroup was last seen or made to have; nil where it has none or it is not known.
	PodSize *Size
	// Resized holds, by container ID, what instances were last resized to.
	Resized map[string]corev1.ResourceRequirements
	// Told is the status that was handed on last: the API may be behind it. Nil at first.
	Told *corev1.PodStatus
	// Done holds, by step key, what has succeeded a moment ago.
	Done map[Key]Completed
}

// Completed is a step that has succeeded. The same step is not repeated at once though the facts may still call for it.
type Completed struct {
	// Step is the identity of the step.
	Step Step
	At   time.Time
}

// Failure is a failed step that may be tried again.
type Failure struct {
	// Count is how often it has failed in a row.
	Count int
	At    time.Time
	// Delay is how long after At it may run again.
	Delay time.Duration
	// Reason is the kubelet's word for it where it has one, such as ErrImagePull; Message says what failed on what.
	Reason  string
	Message string
	// Image is the image that could not be made present; empty for other steps.
	Image string
	// Step is the identity of the step.
	Step Step
}

// holds tells whether the failure counts against a step of its key: trouble with one image or size says nothing about another.
func (f Failure) holds(s Step) bool {
	switch next := s.(type) {
	case EnsureImage:
		return next.Image == f.Image
	case Resize, ResizePod:
		return identity(next) == f.Step
	}
	return true
}

// Retry is when the step may run again.
func (f Failure) Retry() time.Time { return f.At.Add(f.Delay) }

// Volume is a mounted volume.
type Volume struct {
	// RefreshAt is when its content wants a look again, as a token before it expires; zero for never.
	RefreshAt time.Time
	// Stale: an object its content comes from has changed.
	Stale bool
}

// Image is an image made present for one attempt of a container.
type Image struct {
	Attempt uint32
	Image   string
}

// Hook is the outcome of a postStart hook; an empty Failure is success.
type Hook struct{ Failure string }

// Instance is one attempt of a container.
type Instance struct {
	Name    string
	Attempt uint32
}

// Result is what a step came to.
type Result struct {
	Step Step
	// Problem is nil on success.
	Problem *Problem
	// RefreshAt is set by Mount.
	RefreshAt time.Time
	// PodSize is set by Prepare: the size that the pod's cgroup has.
	PodSize *Size
	// Resources is set by Resize: what the container may use now, CPU and memory alone.
	Resources corev1.ResourceRequirements
}

// Problem says what went wrong in terms that people see.
type Problem struct {
	Reason  string
	Message string
	// Cancelled: the worker gave the step up by itself; nothing is held against it.
	Cancelled bool
}

// NewMemory is the memory of a worker that has just begun.
func NewMemory() Memory {
	return Memory{
		InFlight: map[Key]Step{}, Failures: map[Key]Failure{}, Volumes: map[string]Volume{}, Images: map[Key]Image{},
		Started: map[string]bool{}, Hooks: map[string]Hook{}, Restarts: map[Instance]time.Duration{},
		StoppedSandboxes: map[string]bool{}, Killed: map[string]StopContainer{}, Late: map[Key]bool{}, Done: map[Key]Completed{},
		Resized: map[string]corev1.ResourceRequirements{},
	}
}

// Tell notes that a plan's status has been handed on to be published.
func (m *Memory) Tell(p *Plan) { m.Told = &p.Status }

// Began notes that step is in flight.
func (m *Memory) Began(step Step) {
	key := step.Key()
	m.InFlight[key] = step
	delete(m.Late, key)
	switch s := step.(type) {
	case CreateContainer:
		m.Restarts[Instance{s.Name, s.Attempt}] = s.Backoff
		// Those just before stay, for this attempt may have to be made again.
		maps.DeleteFunc(m.Restarts, func(i Instance, _ time.Duration) bool { return i.Name == s.Name && i.Attempt+4 < s.Attempt })
	case StopContainer:
		m.Killed[s.ID] = s
	case StartContainer:
		m.Started[s.ID] = true
	}
}

// Ended notes what a step came to. A result of a step that has been overtaken by another of the same key only counts
// when the other has ended too.
func (m *Memory) Ended(r Result, now time.Time) {
	key := r.Step.Key()
	late := m.Late[key]
	if m.InFlight[key] == r.Step {
		delete(m.InFlight, key)
		delete(m.Late, key)
	}
	if r.Problem != nil {
		if _, hook := r.Step.(PostStart); !hook && !r.Problem.Cancelled {
			m.fail(key, r, now, late)
		}
		if s, hook := r.Step.(PostStart); hook {
			m.Hooks[s.ID] = Hook{Failure: r.Problem.Message}
		}
		return
	}
	delete(m.Failures, key)
	maps.DeleteFunc(m.Done, func(_ Key, d Completed) bool { return now.Sub(d.At) >= stepRetryFirst })
	if !late {
		m.Done[key] = Completed{Step: identity(r.Step), At: now}
	}
	m.succeed(r, late)
}

func (m *Memory) fail(key Key, r Result, now time.Time, late bool) {
	f := m.Failures[key]
	if !f.holds(r.Step) {
		f = Failure{}
	}
	f.Count++
	f.At, f.Reason, f.Message, f.Step = now, r.Problem.Reason, r.Problem.Message, identity(r.Step)
	f.Delay = retryDelay(r.Step, f.Count)
	if late && waitsForObjects(key, f) {
		f.Delay = 0
	}
	if s, image := r.Step.(EnsureImage); image {
		f.Image = s.Image
	}
	m.Failures[key] = f
	if _, create := r.Step.(CreateContainer); create {
		m.forgetImageVolumes()
	}
}

// forgetImageVolumes: an image that a volume needs may have been removed since; it is looked for once more.
func (m *Memory) forgetImageVolumes() {
	maps.DeleteFunc(m.Images, func(key Key, _ Image) bool { return key.Kind == KindEnsureVolumeImage })
}

func (m *Memory) succeed(r Result, late bool) {
	switch s := r.Step.(type) {
	case Prepare:
		m.Prepared, m.PodSize = true, r.PodSize
	case PrepareClaims:
		m.ClaimsPrepared = true
	case UnprepareClaims:
		m.ClaimsPrepared = false
	case Mount:
		m.Volumes[s.Volume] = Volume{RefreshAt: r.RefreshAt, Stale: late}
	case EnsureImage:
		m.Images[s.Key()] = Image{Attempt: s.Attempt, Image: s.Image}
	case PostStart:
		m.Hooks[s.ID] = Hook{}
	case StopSandbox:
		m.StoppedSandboxes[s.ID] = true
	case RemoveSandbox:
		delete(m.StoppedSandboxes, s.ID)
	case RemoveContainer:
		delete(m.Started, s.ID)
		delete(m.Hooks, s.ID)
		delete(m.Killed, s.ID)
		delete(m.Resized, s.ID)
		delete(m.Done, CreateContainer{Name: s.Name}.Key()) // the same attempt may have to be created again
		for _, kind := range []Kind{KindStartContainer, KindStopContainer, KindPostStart, KindResize} {
			delete(m.Failures, Key{kind, s.ID})
		}
	case Resize:
		m.Resized[s.ID] = r.Resources
	case ResizePod:
		m.PodSize = &s.To
	case Unmount:
		delete(m.Volumes, s.Volume)
	case RemoveCgroup:
		m.Prepared, m.PodSize = false, nil
	}
}

// Stale notes that objects the pod uses, or its own metadata, have changed: its volumes want a look, and steps that failed
// for want of an object may run at once.
func (m *Memory) Stale() {
	for name, v := range m.Volumes {
		v.Stale = true
		m.Volumes[name] = v
	}
	maps.DeleteFunc(m.Failures, waitsForObjects)
	clear(m.Done)
	for key := range m.InFlight {
		m.Late[key] = true
	}
}

// LacksObjects: a container cannot be made for what its configuration lacks, as a key of a ConfigMap.
func (m *Memory) LacksObjects() bool {
	for _, f := range m.Failures {
		if f.Reason == ReasonCreateContainerConfig {
			return true
		}
	}
	return false
}

// FailedImage is the failure of the image for want of which a container cannot be made: its own, or that of a volume it mounts.
func (m *Memory) FailedImage(pod *corev1.Pod, c *corev1.Container) (f Failure, failed bool) {
	own := EnsureImage{Container: c.Name}
	if f, failed = m.Failures[own.Key()]; failed && f.Image == c.Image {
		return f, true
	}
	for vol := range imageVolumes(pod, c) {
		ensure := EnsureImage{Volume: vol.Name}
		if f, failed = m.Failures[ensure.Key()]; failed && f.Image == vol.Image.Reference {
			return f, true
		}
	}
	return Failure{}, false
}

// waitsForObjects reports whether a change of an object can make the failed step succeed.
func waitsForObjects(key Key, f Failure) bool {
	switch key.Kind {
	case KindMount, KindUnmount, KindPrepareClaims, KindUnprepareClaims:
		return true
	}
	return f.Reason == ReasonCreateContainerConfig
}

const (
	imageRetryFirst = 10 * time.Second
	imageRetryMax   = 5 * time.Minute
	stepRetryFirst  = time.Second
	stepRetryMax    = time.Minute
)

// retryDelay is the back-off of a failed step: the kubelet's curve for images, a steeper one for the rest.
func retryDelay(step Step, count int) time.Duration {
	if _, image := step.(EnsureImage); image {
		return doubled(imageRetryFirst, count-1, imageRetryMax)
	}
	return doubled(stepRetryFirst, count-1, stepRetryMax)
}

// doubled is first, doubled n times, at most limit.
func doubled(first time.Duration, n int, limit time.Duration) time.Duration {
	for ; n > 0 && first < limit; n-- {
		first *= 2
	}
	return min(first, limit)
}
