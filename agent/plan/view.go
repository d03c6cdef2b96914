package plan

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// slot is one container of the spec with what became of it.
type slot struct {
	spec *corev1.Container
	role podutil.Role
	// last is the newest instance; nil where there never was one.
	last *Container
	// here: last lives in the current sandbox.
	here bool
	// lost: the runtime has forgotten last; it is rebuilt from what the API showed.
	lost bool
	// reset: last went so that all containers can start anew, which the API does not show yet.
	reset bool
	// shown is what the API shows of the container; nil for nothing.
	shown *corev1.ContainerStatus
}

// view is the facts, sorted: everything the rules ask more than once.
type view struct {
	d Desired
	o Observed
	// sandboxes are all of them, newest first; current is the one to run in, nil where none serves.
	sandboxes []Sandbox
	current   *Sandbox
	// slots are the containers in the order init (with sidecars), app, ephemeral.
	slots []slot
	// initialized: the current sandbox is past its init containers.
	initialized bool
	stop        *Stop
	// resetting: all containers are to start anew, and instances are left that must go first. resetAsked: one of those asked.
	resetting, resetAsked bool
	// old is the status to build on: what this life of the agent has said last, or else what the API shows.
	old *corev1.PodStatus
}

func look(d Desired, o Observed) *view {
	v := &view{d: d, o: o, sandboxes: slices.Clone(o.Sandboxes), old: &d.Pod.Status}
	if told := o.Memory.Told; told != nil && (podutil.IsTerminal(told.Phase) || !podutil.IsTerminal(d.Pod.Status.Phase)) {
		v.old = told
	}
	slices.SortFunc(v.sandboxes, func(a, b Sandbox) int { return int(b.Attempt) - int(a.Attempt) })
	v.current = v.usable()
	v.slots = v.fill()
	v.initialized = v.pastInit()
	v.findReset()
	v.stop = v.effectiveStop()
	v.resetting = v.resetting && v.stop == nil
	return v
}

// usable is the newest sandbox if pods can run in it.
func (v *view) usable() *Sandbox {
	if len(v.sandboxes) == 0 {
		return nil
	}
	s := &v.sandboxes[0]
	if !s.Ready || !v.d.Pod.Spec.HostNetwork && len(s.IPs) == 0 {
		return nil
	}
	return s
}

func (v *view) fill() []slot {
	spec := &v.d.Pod.Spec
	slots := make([]slot, 0, podutil.Count(spec))
	for role, c := range podutil.Containers(spec) {
		s := slot{spec: c, role: role, last: newest(v.o.Containers, c.Name), shown: podutil.ContainerStatus(v.old, c.Name)}
		v.findLost(&s)
		s.here = s.last != nil && v.current != nil && s.last.SandboxID == v.current.ID
		slots = append(slots, s)
	}
	return slots
}

// findLost: where the status speaks of an instance that is newer than all that the runtime knows, that is the newest.
func (v *view) findLost(s *slot) {
	if s.shown == nil || s.last != nil && podutil.RuntimeID(s.shown.ContainerID) == s.last.ID {
		return
	}
	gone := lost(s.shown)
	if gone != nil && !known(v.o.Containers, gone.ID) && (s.last == nil || s.last.Attempt <= gone.Attempt) {
		s.last, s.lost = gone, true
	}
}

// newest is the newest instance of the named container, nil where there is none.
func newest(all []Container, name string) *Container {
	var found *Container
	for i := range all {
		if c := &all[i]; c.Name == name && (found == nil || c.Attempt > found.Attempt) {
			found = c
		}
	}
	return found
}

func known(all []Container, id string) bool {
	for i := range all {
		if id != "" && all[i].ID == id {
			return true
		}
	}
	return false
}

// lost rebuilds the newest instance of a container from what the API shows of it; nil where it never had one. The end of
// an instance that was running then has been seen by nobody.
func lost(shown *corev1.ContainerStatus) *Container {
	if shown == nil {
		return nil
	}
	ended := shown.State.Terminated
	if ended == nil && shown.State.Waiting != nil {
		ended = shown.LastTerminationState.Terminated
		if ended != nil && shown.ContainerID != "" && ended.ContainerID != "" && ended.ContainerID != shown.ContainerID {
			ended = nil // that was the instance before
		}
	}
	if shown.ContainerID == "" && ended == nil && shown.RestartCount == 0 {
		return nil
	}
	c := &Container{Name: shown.Name, ID: podutil.RuntimeID(shown.ContainerID), Attempt: uint32(max(shown.RestartCount, 0)),
		State: ContainerExited, Image: shown.Image, ImageID: shown.ImageID}
	if shown.ContainerID == "" && c.Attempt > 0 {
		c.Attempt-- // the status of a container that has vanished counts its next instance already
	}
	if ended != nil {
		c.ID = cmp.Or(c.ID, podutil.RuntimeID(ended.ContainerID))
		c.StartedAt, c.FinishedAt = ended.StartedAt.Time, ended.FinishedAt.Time
		c.ExitCode, c.Signal, c.Reason, c.Message = ended.ExitCode, ended.Signal, ended.Reason, ended.Message
		return c
	}
	if shown.State.Running != nil {
		c.StartedAt = shown.State.Running.StartedAt.Time
	}
	c.ExitCode, c.Reason, c.Message = exitUnknown, ReasonStatusUnknown, messageNotLocated
	return c
}

// messageNotLocated is the kubelet's word for a container whose end nobody saw.
const messageNotLocated = "The container could not be located when the pod was terminated"

// exitUnknown is the exit code of a container whose end nobody saw, as if it had been killed.
const exitUnknown = 137

// pastInit: a container that comes after init has been started in the current sandbox, or is being started there, or every init
// container has done its part there. One that was only made says nothing: its call may have come through late, after all was to start anew.
func (v *view) pastInit() bool {
	if v.current == nil {
		return false
	}
	for i := range v.slots {
		if s := &v.slots[i]; s.role == podutil.RoleApp && s.here && v.startedHere(s.spec.Name) {
			return true
		}
	}
	for i := range v.slots {
		if s := &v.slots[i]; !v.initDone(s) {
			return false
		}
	}
	return true
}

// inFlight: a step on the same thing is on its way.
func (v *view) inFlight(s Step) bool {
	_, busy := v.o.Memory.InFlight[s.Key()]
	return busy
}

// startedHere: an instance of a container has been started in the current sandbox, or is being started.
func (v *view) startedHere(name string) bool {
	return slices.ContainsFunc(v.o.Containers, func(c Container) bool {
		return c.Name == name && c.SandboxID == v.current.ID && (c.State != ContainerCreated || v.inFlight(StartContainer{ID: c.ID}))
	})
}

// initDone: s does not hold up what comes after it.
func (v *view) initDone(s *slot) bool {
	switch s.role {
	case podutil.RoleInit:
		return s.here && s.last.State == ContainerExited && s.last.ExitCode == 0
	case podutil.RoleSidecar:
		return s.here && s.last.State == ContainerRunning && v.started(s)
	}
	return true
}

// started: a running container has passed its postStart hook and startup probe.
func (v *view) started(s *slot) bool {
	if s.last == nil || s.last.State != ContainerRunning || v.hookDue(s) {
		return false
	}
	if s.spec.StartupProbe == nil {
		return true
	}
	switch v.o.Verdicts[s.last.ID].Startup {
	case ProbeSuccess:
		return true
	case ProbeFailure:
		return false
	}
	return v.shown(s).started
}

// ready: a started container says by its readiness probe that it can serve.
func (v *view) ready(s *slot) bool {
	if !v.started(s) {
		return false
	}
	if s.spec.ReadinessProbe == nil {
		return true
	}
	switch v.o.Verdicts[s.last.ID].Readiness {
	case ProbeSuccess:
		return true
	case ProbeFailure:
		return false
	}
	return v.shown(s).ready
}

type shownState struct{ started, ready bool }

// shown is what the API says of the very instance in s: it stands until a probe of this life of the agent says otherwise.
func (v *view) shown(s *slot) shownState {
	c := s.shown
	if c == nil || c.State.Running == nil || podutil.RuntimeID(c.ContainerID) != s.last.ID {
		return shownState{}
	}
	return shownState{started: c.Started != nil && *c.Started, ready: c.Ready}
}

// hookDue: the postStart hook of a container that this life of the agent has started has not ended well.
func (v *view) hookDue(s *slot) bool {
	if s.spec.Lifecycle == nil || s.spec.Lifecycle.PostStart == nil || !v.o.Memory.Started[s.last.ID] {
		return false
	}
	h, ended := v.o.Memory.Hooks[s.last.ID]
	return !ended || h.Failure != ""
}

// alive: the instance may have processes.
func alive(c *Container) bool {
	return c != nil && (c.State == ContainerRunning || c.State == ContainerUnknown)
}
