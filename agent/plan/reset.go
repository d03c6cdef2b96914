package plan

import (
	"slices"

	"github.com/nodelet/nodelet/agent/podstate"
)

// reset removes the instances of all containers (RestartAllContainers), those that asked for the reset
// last: while one of them is there, a later run of the agent can derive the reset from it. Before they are
// removed, a marker file in the pod's directory takes their place.
func (p *planner) reset() {
	waiting := p.giveUpContainers()
	var sources []podstate.RemoveContainer
	for i := range p.Containers {
		c := &p.Containers[i]
		spec := p.RemovedByReset(c)
		if spec == nil {
			continue
		}
		remove := podstate.RemoveContainer{ID: c.ID, Name: c.Name, KeepLog: true}
		switch {
		case c.Alive():
			p.step(podstate.StopContainer{
				ID:       c.ID,
				Name:     c.Name,
				Deadline: p.Now,
				Cause:    podstate.CauseReset,
				Reason:   "Container " + c.Name + " will be restarted with all containers of the pod",
			})
			waiting = true
		case p.Memory.InFlight(podstate.StartContainer{ID: c.ID}) != nil: // not removed while it may come up
		case podstate.AsksForReset(spec, c):
			sources = append(sources, remove)
		default:
			p.step(remove)
			waiting = true
		}
	}
	switch {
	case waiting || !p.Memory.Prepared(): // the marker file is in the pod's directory
	case !p.ResetMarked:
		p.step(podstate.MarkReset{})
	default:
		for _, remove := range sources {
			p.step(remove)
		}
	}
}

// forgetReset removes the marker file of a reset once it is not needed any more.
func (p *planner) forgetReset() {
	if p.ResetMarked && !slices.ContainsFunc(p.Slots, (*podstate.Slot).ResetUnreported) {
		p.step(podstate.MarkReset{Over: true})
	}
}

// giveUpContainers cancels the steps in flight that create containers, and waits for those that start them.
// It reports whether there are any: their outcome must be seen first.
func (p *planner) giveUpContainers() (waiting bool) {
	for _, step := range p.Memory.Running() {
		switch step.(type) {
		case podstate.StartContainer:
			p.inProgress(step)
			waiting = true
		case podstate.CreateContainer, podstate.PostStart:
			p.cancel(step)
			waiting = true
		}
	}
	return waiting
}
