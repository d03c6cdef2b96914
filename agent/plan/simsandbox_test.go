package plan

import (
	"slices"
	"time"

	"github.com/nodelet/nodelet/agent/podstate"
)

// unfitness is what makes a new sandbox unusable.
type unfitness string

const (
	// unfitDead: its process has ended.
	unfitDead unfitness = "dead"
	// unfitNoAddress: it has no address. On the host network it needs none.
	unfitNoAddress unfitness = "no-address"
	// unfitSoon: it is usable, and its process ends soon.
	unfitSoon unfitness = "soon"
)

// timedDeath is when the process of a sandbox ends.
type timedDeath struct {
	at time.Time
	id string
}

// spoil makes a new sandbox unusable.
func (u unfitness) spoil(box *podstate.Sandbox) {
	switch u {
	case unfitDead:
		box.Ready, box.IPs = false, nil
	case unfitNoAddress:
		box.IPs = nil
	}
}

// makesUnfit reports whether sandboxes can be created that are not usable in this run. In all others each is usable at
// first. The choice is as that of shortOfDisk.
func (l *simRun) makesUnfit() bool { return l.seed%19 == 5 }

// movesNetwork reports whether a new spec can change hostNetwork in this run, as the manifest of a static pod with a
// UID of its own can. The choice is as that of shortOfDisk.
func (l *simRun) movesNetwork() bool { return l.seed%19 == 11 }

// sandboxFate decides whether the sandbox that a call creates is usable.
func (l *simRun) sandboxFate(c *call) {
	if _, create := c.step.(podstate.CreateSandbox); create && l.makesUnfit() && chance(l.r, 2) {
		c.unfit = pick(l.r, unfitDead, unfitNoAddress, unfitSoon)
	}
}

// sandboxMade plans the death of a sandbox that does not live long.
func (l *simRun) sandboxMade(c *call) {
	if c.unfit == unfitSoon && c.id != "" {
		l.deaths = append(l.deaths, timedDeath{l.now.Add(l.within(2 * time.Second)), c.id})
	}
}

// sandboxesDie ends the sandboxes whose time has come.
func (l *simRun) sandboxesDie() {
	l.deaths = slices.DeleteFunc(l.deaths, func(d timedDeath) bool {
		if d.at.After(l.now) {
			return false
		}
		if box := l.sandbox(d.id); box != nil {
			l.note("sandbox %s dies young", d.id)
			l.killSandbox(box)
		}
		return true
	})
}

// usable reports whether containers can run in a sandbox.
func (w *world) usable(box *podstate.Sandbox) bool {
	if w.desired.Pod.Spec.HostNetwork {
		return box.Ready && box.Network == podstate.NetworkHost
	}
	return box.Ready && box.Network == podstate.NetworkPod && len(box.IPs) > 0
}

// newestSandbox returns the sandbox with the highest number; nil if there is none.
func (w *world) newestSandbox() (newest *podstate.Sandbox) {
	for i := range w.sandboxes {
		if box := &w.sandboxes[i]; newest == nil || box.Attempt > newest.Attempt {
			newest = box
		}
	}
	return newest
}

// sandboxAnswered records that the agent knows of a new sandbox.
func (ru *rules) sandboxAnswered(c *call) {
	if _, create := c.step.(podstate.CreateSandbox); create && c.problem == nil {
		ru.unused = c.id
	}
}

// sandboxSeen notes that a container has been started in a sandbox, or that it was lost before.
func (ru *rules) sandboxSeen(w *world) {
	newest := w.newestSandbox()
	if newest == nil {
		return
	}
	ran := func(c podstate.Container) bool { return c.SandboxID == newest.ID && !c.StartedAt.IsZero() }
	switch usable := w.usable(newest); {
	case usable && slices.ContainsFunc(w.containers, ran):
		ru.unfit, ru.unused = failures{}, ""
	case !usable && newest.ID == ru.unused:
		ru.unfit, ru.unused = failures{ru.unfit.count + 1, ru.mono()}, ""
	}
}

// sandboxWaits checks that the delays double from a second to a minute while no container runs in a sandbox.
func (ru *rules) sandboxWaits(s podstate.CreateSandbox) {
	if waited := ru.mono() - ru.unfit.last; waited < ru.unfit.delay() {
		ru.breaks("%s %s after the unusable sandbox number %d", s, waited, ru.unfit.count)
	}
}

// fewSandboxes checks that the pod has no sandboxes of no use when another is created, and at rest: each but the newest
// has a container, or its removal has begun.
func (ru *rules) fewSandboxes(w *world, p *Plan) {
	newest := w.newestSandbox()
	for i := range w.sandboxes {
		box := &w.sandboxes[i]
		inUse := slices.ContainsFunc(w.containers, func(c podstate.Container) bool { return c.SandboxID == box.ID })
		remove := podstate.RemoveSandbox{ID: box.ID, Attempt: box.Attempt}
		_, failed := w.memory.Failures[remove.Key()]
		begun := failed || w.memory.InFlight[remove.Key()] != nil || slices.Contains(p.Steps, podstate.Step(remove))
		if box != newest && !inUse && !begun {
			ru.breaks("%s is still there, and %s is the newest; %d sandboxes", box.ID, newest.ID, len(w.sandboxes))
		}
	}
}

// failures are calls in a row that did not lead to what they should.
type failures struct {
	count int
	last  time.Duration
}

// delay returns how long after the last of them the next call must wait: from a second to a minute.
func (f failures) delay() time.Duration {
	if f.count == 0 {
		return 0
	}
	return min(time.Second<<(f.count-1), time.Minute)
}
