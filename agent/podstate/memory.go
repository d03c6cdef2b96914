package podstate

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Memory is what one run of the agent remembers of a pod. The pod's worker owns it and changes it through its methods.
// All other code reads it through a Recall. After a crash of the agent it is empty: the agent then repeats idempotent
// work. Its decisions stay correct. The exception is what has no other record: a container that was stopped to run
// again and has exited with 0 counts as completed, if its policy is OnFailure.
type Memory struct {
	// Prepared: the pod's directories and cgroup exist.
	Prepared bool
	// ClaimsPrepared: the pod's resource claims have been prepared.
	ClaimsPrepared bool
	// InFlight holds the running steps by key.
	InFlight map[Key]Step
	// Failures holds the last failure of each step key that has not succeeded since.
	Failures map[Key]Failure
	// Unstarted holds, by container name, the last failed start of an instance that the runtime has removed since. It
	// counts as a failed creation until the container has started.
	Unstarted map[string]Failure
	// Volumes are the mounted volumes by name.
	Volumes map[string]Volume
	// Images are the images that are known to be present, by the keys of EnsureImage.
	Images map[Key]Image
	// Instances holds what is remembered of containers in the runtime, by ID.
	Instances map[string]*InstanceMemory
	// Restarts holds the crash-loop back-offs: how long after the end of an instance the next may be created.
	Restarts map[Instance]time.Duration
	// NewSandbox is the ID of the sandbox that the agent has created, until a container has started in it or it turns
	// out not to be usable; empty if there is none.
	NewSandbox string
	// StoppedSandboxes marks the sandboxes, by ID, whose network has been released.
	StoppedSandboxes map[string]bool
	// Late marks the steps in flight, by key, that began before the change of an object which they may have read.
	Late map[Key]bool
	// PodSize is the last known size of the pod's cgroup; nil if the pod has no cgroup or the size is not known.
	PodSize *Size
	// Reported is the status that was published last; the API may be behind it. Nil at first.
	Reported *corev1.PodStatus
	// Successes holds, by step key, the steps that have succeeded within StepRetryFirst.
	Successes map[Key]Success
}

// InstanceMemory is what is remembered of one container in the runtime.
type InstanceMemory struct {
	// Started: this run of the agent has started it, or an earlier one that has not seen its postStart hook succeed. Only
	// then it gets that hook.
	Started bool
	// PreStopped: its preStop hook has begun.
	PreStopped bool
	// Hook is the outcome of its postStart hook.
	Hook Hook
	// Stop is its last stop that the agent has begun, by its preStop hook or by the stop itself; the zero value if there
	// is none.
	Stop StopContainer
	// Resized is what it was last resized to; nil if it was not.
	Resized *corev1.ResourceRequirements
}

// Success is a step that has succeeded. The same step is not repeated at once, even if the observed facts do not show
// its effect yet.
type Success struct {
	Step Step
	At   time.Time
}

// Volume is a mounted volume.
type Volume struct {
	// RefreshAt is when its content must be refreshed, such as a token before it expires; zero for never.
	RefreshAt time.Time
	// Stale: an object that its content comes from has changed.
	Stale bool
}

// Image is an image that is known to be present for one attempt of a container.
type Image struct {
	Attempt uint32
	Image   string
	// At is when it was ensured.
	At time.Time
}

// Hook is the outcome of a postStart hook; an empty Failure is success.
type Hook struct {
	Ended   bool
	Failure string
}

// Instance is one attempt of a container.
type Instance struct {
	Name    string
	Attempt uint32
}

// Result is the outcome of a step.
type Result struct {
	Step Step
	// Problem is nil on success.
	Problem *Problem
	// ID is set by CreateSandbox and CreateContainer: the ID of the new instance.
	ID string
	// RefreshAt is set by Mount.
	RefreshAt time.Time
	// PodSize is set by Prepare: the size that the pod's cgroup has.
	PodSize *Size
	// Resources is set by Resize: the CPU and memory that the container may use now.
	Resources corev1.ResourceRequirements
}

// Problem is the failure of a step, with Reason and Message for the pod's status and events.
type Problem struct {
	Reason  string
	Message string
	// Event is the text of the event, if that is not Message.
	Event string
	// Cancelled: the worker itself cancelled the step; it does not count as a failure.
	Cancelled bool
	// Lacks: an object that the pod refers to could not be read, and the step may succeed with it.
	Lacks bool
}

// NewMemory returns the empty memory of a new worker.
func NewMemory() Memory {
	return Memory{
		InFlight:         map[Key]Step{},
		Failures:         map[Key]Failure{},
		Unstarted:        map[string]Failure{},
		Volumes:          map[string]Volume{},
		Images:           map[Key]Image{},
		Instances:        map[string]*InstanceMemory{},
		Restarts:         map[Instance]time.Duration{},
		StoppedSandboxes: map[string]bool{},
		Late:             map[Key]bool{},
		Successes:        map[Key]Success{},
	}
}

// Report records that a status was published.
func (m *Memory) Report(st *corev1.PodStatus) { m.Reported = st }

// Resume makes the status in the API the one on which the next status is based, as at the start of the agent, unless
// the pod has ended since. The agent has published none before.
func (m *Memory) Resume() {
	if m.Reported != nil && !podutil.IsTerminal(m.Reported.Phase) {
		m.Reported = nil
	}
}

// Began records that step is in flight.
func (m *Memory) Began(step Step) {
	key := step.Key()
	m.InFlight[key] = step
	delete(m.Late, key)
	switch s := step.(type) {
	case CreateContainer:
		m.Restarts[Instance{s.Name, s.Attempt}] = s.Backoff
		// The most recent ones stay: this attempt may have to be created again.
		maps.DeleteFunc(m.Restarts, func(i Instance, _ time.Duration) bool {
			return i.Name == s.Name && i.Attempt+4 < s.Attempt
		})
	case PreStop:
		m.instance(s.ID).PreStopped = true
		m.stopping(StopContainer(s))
	case StopContainer:
		m.stopping(s)
	case StartContainer:
		m.instance(s.ID).Started = true
	}
	m.undone(step)
}

// undone forgets what a step takes away. It may have its effect even if it fails.
func (m *Memory) undone(step Step) {
	switch s := step.(type) {
	case UnprepareClaims:
		m.ClaimsPrepared = false
	case Unmount:
		delete(m.Volumes, s.Volume)
	case RemoveCgroup:
		m.Prepared, m.PodSize = false, nil
	}
}

// stopping records a stop. If the state of the container has become unknown since an earlier stop, the cause of that
// one stays.
func (m *Memory) stopping(s StopContainer) {
	i := m.instance(s.ID)
	if i.Stop.ID != "" && s.Cause == CauseUnknown {
		s.Cause = i.Stop.Cause
	}
	i.Stop = s
}

// instance returns what is remembered of an instance, for changes.
func (m *Memory) instance(id string) *InstanceMemory {
	if m.Instances[id] == nil {
		m.Instances[id] = &InstanceMemory{}
	}
	return m.Instances[id]
}

// Ended records the outcome of a step. If another step with the same key has overtaken it, the key stays in flight
// until that step has ended too.
func (m *Memory) Ended(r Result, now time.Time) {
	key := r.Step.Key()
	late := m.Late[key]
	if m.InFlight[key] == r.Step {
		delete(m.InFlight, key)
		delete(m.Late, key)
	}
	if r.Problem != nil {
		switch s, hook := r.Step.(PostStart); {
		case r.Problem.Cancelled:
		case hook && r.Problem.Reason == podutil.ReasonPostStartHook:
			m.instance(s.ID).Hook = Hook{Ended: true, Failure: r.Problem.Message}
		default:
			m.fail(key, r, now, late)
		}
		return
	}
	if key.Kind != KindCreateSandbox { // seeSandbox decides
		delete(m.Failures, key)
	}
	maps.DeleteFunc(m.Successes, func(_ Key, s Success) bool { return now.Sub(s.At) >= StepRetryFirst })
	if !late {
		m.Successes[key] = Success{Step: r.Step, At: now}
	}
	m.succeed(r, now, late)
}

// forgetImages removes the image of a container and those of image volumes from the memory, so that they are ensured
// again: they may have been removed from the node while the container waited for something else.
func (m *Memory) forgetImages(container string) {
	own := EnsureImage{Container: container}.Key()
	for key := range m.Images {
		if key == own || key.Kind == KindEnsureVolumeImage {
			delete(m.Images, key)
			delete(m.Successes, key)
		}
	}
}

func (m *Memory) succeed(r Result, now time.Time, late bool) {
	switch s := r.Step.(type) {
	case Prepare:
		m.prepared(r.PodSize)
	case PrepareClaims:
		m.ClaimsPrepared = true
	case Mount:
		m.Volumes[s.Volume] = Volume{RefreshAt: r.RefreshAt, Stale: late}
	case EnsureImage:
		m.Images[s.Key()] = Image{Attempt: s.Attempt, Image: s.Image, At: now}
	case StartContainer:
		delete(m.Unstarted, s.Name)
	case PostStart:
		m.instance(s.ID).Hook = Hook{Ended: true}
	case CreateSandbox:
		m.NewSandbox = r.ID
	case StopSandbox:
		m.StoppedSandboxes[s.ID] = true
	case RemoveSandbox:
		delete(m.StoppedSandboxes, s.ID)
	case RemoveContainer:
		m.forget(s.ID)
		delete(m.Successes, CreateContainer{Name: s.Name}.Key()) // the same attempt may have to be created again
	case Resize:
		to := r.Resources
		m.instance(s.ID).Resized = &to
	case ResizePod:
		m.prepared(&s.To)
	}
}

// prepared records that the pod's cgroup exists, with its size. A resize that has failed is done if the cgroup has the
// size that it should have set.
func (m *Memory) prepared(size *Size) {
	m.Prepared, m.PodSize = true, size
	key := ResizePod{}.Key()
	if f, failed := m.Failures[key]; failed && size != nil && f.Step.(ResizePod).To == size.Normal() {
		delete(m.Failures, key)
	}
}

// forget forgets an instance that was removed.
func (m *Memory) forget(id string) {
	delete(m.Instances, id)
	for _, kind := range []Kind{KindStartContainer, KindStopContainer, KindPostStart, KindPreStop, KindResize} {
		delete(m.Failures, Key{kind, id})
	}
}

// See records what the runtime has of the pod: its sandboxes, newest first, and its containers. It may have removed one
// that failed to start.
func (m *Memory) See(pod *corev1.Pod, boxes []Sandbox, all []Container, now time.Time) {
	if m.Reported == nil {
		m.resumeHooks(pod, all)
	}
	if len(boxes) > 0 {
		m.seeSandbox(&boxes[0], pod, all, now)
	}
	for _, f := range m.Failures {
		if start, is := f.Step.(StartContainer); is && !contains(all, start.ID) {
			m.forget(start.ID)
			m.unstarted(start.Name, f)
		}
	}
}

// resumeHooks finds the instances whose postStart hook was due when an earlier run of the agent ended: they run, and
// the API shows them as waiting.
func (m *Memory) resumeHooks(pod *corev1.Pod, all []Container) {
	for i := range all {
		c := &all[i]
		if c.State != ContainerRunning {
			continue
		}
		if st := podutil.ContainerStatus(&pod.Status, c.Name); shows(st, c.ID) && st.State.Waiting != nil {
			m.instance(c.ID).Started = true
		}
	}
}

// seeSandbox records what has become of the newest sandbox. Its creation has succeeded when a container has started in
// it, and failed if it is not usable before that is seen: its process may end at any time. One that is lost later does
// not count.
func (m *Memory) seeSandbox(box *Sandbox, pod *corev1.Pod, all []Container, now time.Time) {
	step := CreateSandbox{Attempt: box.Attempt}
	used := func(c Container) bool { return c.SandboxID == box.ID && !c.StartedAt.IsZero() }
	switch why := box.Problem(pod); {
	case why == "" && slices.ContainsFunc(all, used):
		delete(m.Failures, step.Key())
	case why != "" && box.ID == m.NewSandbox:
		m.fail(step.Key(), Result{Step: step, Problem: &Problem{Message: why}}, now, false)
	default:
		return
	}
	m.NewSandbox = ""
}

// unstarted records that the runtime has removed an instance that failed to start.
func (m *Memory) unstarted(container string, f Failure) {
	f.Count += m.Unstarted[container].Count
	f.Delay = retryDelay(f.Step.Key(), f)
	m.Unstarted[container] = f
	m.forgetImages(container)
}

// Stale records that objects which the pod uses, or its own metadata, have changed. The pod's volumes are then
// refreshed, and steps that failed because an object was missing may run at once, or, for pulls of images, soon.
func (m *Memory) Stale() {
	for name, v := range m.Volumes {
		v.Stale = true
		m.Volumes[name] = v
	}
	maps.DeleteFunc(m.Failures, waitsForObjects)
	for key, f := range m.Failures {
		f.hasten(key)
		m.Failures[key] = f
	}
	clear(m.Successes)
	for key := range m.InFlight {
		m.Late[key] = true
	}
}

// RuntimeReady records that the runtime and its network are ready again. What the runtime has failed meanwhile may run
// at once, apart from pulls and starts of containers.
func (m *Memory) RuntimeReady() {
	for key, f := range m.Failures {
		switch key.Kind {
		case KindCreateSandbox, KindStopSandbox, KindRemoveSandbox,
			KindCreateContainer, KindPostStart, KindPreStop, KindStopContainer, KindRemoveContainer:
			f.Delay = 0
			m.Failures[key] = f
		}
	}
}

// MayLackObjects reports whether the pull of an image has failed without a pull secret, or the creation of a container
// before the runtime was called. A key of a ConfigMap may be missing, but a full disk has the same reason.
func (m *Memory) MayLackObjects() bool {
	for _, f := range m.Failures {
		if f.Lacks || f.Reason == podutil.ReasonCreateContainerConfig {
			return true
		}
	}
	return false
}
