package plan

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/podstatus"
)

// Plan is what follows from the facts about one pod.
type Plan struct {
	// Steps may all run now, at the same time.
	Steps []podstate.Step
	// Cancel holds the keys of steps in flight that are not wanted any more.
	Cancel []podstate.Key
	// Probes are the containers to probe from now on.
	Probes []ProbeTarget
	// Status is the pod's status as it should be published. It is never modified.
	Status *corev1.PodStatus
	// Waits says what the pod is waiting for, most important first; empty when it waits for nothing.
	Waits []Wait
	// Wake is when to plan again though nothing has happened; zero for never.
	Wake time.Time
	// Stop is Desired.Stop, without its reason if the pod had ended by itself before.
	Stop *podstate.Stop
	// Ending is why the pod must not run any more, as podstate.State has it; nil while it should run.
	Ending *podstate.Stop
	// Released: nothing of the pod runs any more and all it held is released, so the API object may be deleted.
	Released bool
	// Reclaimed: the runtime keeps nothing of the ended pod any more, as Desired.Reclaim asks.
	Reclaimed bool
	// Done: no trace is left, so the worker may end.
	Done bool
}

// ProbeTarget is a running container whose probes are due.
type ProbeTarget struct {
	ContainerID string
	// Container is its spec. Never modified.
	Container *corev1.Container
	StartedAt time.Time
	// Started and Ready are what the API last showed: a probe result counts only once there is one.
	Started bool
	Ready   bool
	// ReadinessOnly: the pod is ending, so that startup and liveness no longer count.
	ReadinessOnly bool
}

// Wait is one thing a pod waits for.
type Wait struct {
	// For names it: a step, or "container app".
	For fmt.Stringer
	// Why says what is going on, with the last error where there is one.
	Why string
	// Until is when it is tried again; zero if something else must happen first.
	Until time.Time
}

// named is the name of what a pod waits for.
type named string

func (n named) String() string { return string(n) }

func container(name string) named { return named("container " + name) }

// Clearing reports whether the pod has to end and no container of it is alive. What it has on the disk goes next, so
// that must be observed too.
func Clearing(d podstate.Desired, o podstate.Observed) bool {
	return !podstate.Some(o.Containers, (*podstate.Container).Alive) && podstate.New(d, o).Ending != nil
}

// Pod decides what the pod needs next.
func Pod(d podstate.Desired, o podstate.Observed) Plan {
	p := &planner{State: podstate.New(d, o)}
	if p.Ending != nil {
		p.tearDown()
	} else {
		p.syncRunning()
	}
	p.plan.Stop, p.plan.Ending = p.Stop, p.Ending
	slices.SortFunc(p.plan.Cancel, podstate.Key.Compare)
	p.plan.Status = podstatus.Build(p.State, podstatus.Progress{
		Cancelling: slices.ContainsFunc(p.plan.Cancel, mayStart),
		Released:   p.plan.Released,
	})
	return p.plan
}

// mayStart reports whether a step that is given up may still start or mount something. A preStop hook may not.
func mayStart(key podstate.Key) bool { return key.Kind != podstate.KindPreStop }

// planner makes the plan that follows from a state.
type planner struct {
	*podstate.State
	plan Plan
	// hook is the first container whose postStart hook the containers after it wait for; nil if there is none.
	hook *podstate.Slot
}

// step adds a step that may begin now. If it is in flight, in back-off or has just succeeded, it adds a wait instead.
func (p *planner) step(s podstate.Step) {
	if running := p.Memory.InFlight(s.Key()); running != nil && !podstate.Overtakes(s, running) {
		if superseded(running, s) {
			p.plan.Cancel = append(p.plan.Cancel, s.Key())
		}
		p.inProgress(running)
		return
	}
	if f, failed := p.Memory.Failure(s.Key()); failed && f.Holds(s) && p.Now.Before(f.Retry()) {
		p.later(s, f.Message, f.Retry())
		look, at := f.Look(s, p.Now)
		p.wakeAt(at)
		if look != nil && !slices.Contains(p.plan.Steps, look) { // two containers may mount the same image
			p.plan.Steps = append(p.plan.Steps, look)
		}
		return
	}
	if at, done := p.Memory.Succeeded(s); done && p.Now.Before(at.Add(podstate.StepRetryFirst)) {
		p.later(s, "it has succeeded, but its effect is not visible yet", at.Add(podstate.StepRetryFirst))
		return
	}
	p.plan.Steps = append(p.plan.Steps, s)
}

// superseded reports whether a step in flight ensures an image that is not needed any more: next, with the same key,
// ensures another one.
func superseded(running, next podstate.Step) bool {
	image, ensures := running.(podstate.EnsureImage)
	image.Look = false
	return ensures && next != podstate.Step(image)
}

// later makes a step that must not begin yet into a wait.
func (p *planner) later(s podstate.Step, why string, until time.Time) {
	p.wakeAt(until)
	p.wait(Wait{For: s, Why: why, Until: until})
}

func (p *planner) inProgress(s podstate.Step) { p.wait(Wait{For: s, Why: p.Memory.Progress(s)}) }

// cancel gives up a step in flight; its outcome must be seen first.
func (p *planner) cancel(s podstate.Step) {
	p.plan.Cancel = append(p.plan.Cancel, s.Key())
	p.wait(Wait{For: s, Why: "being given up"})
}

func (p *planner) wait(w Wait) { p.plan.Waits = append(p.plan.Waits, w) }

// wakeAt plans a wake-up at the given time, unless one comes earlier; a zero time is ignored. What is left counts: a
// time that was taken before the wall clock was set cannot be compared with one that has no monotonic part.
func (p *planner) wakeAt(at time.Time) {
	if at.IsZero() {
		return
	}
	left := at.Sub(p.Now)
	if p.plan.Wake.IsZero() || left < p.plan.Wake.Sub(p.Now) {
		p.plan.Wake = p.Now.Add(left)
	}
}
