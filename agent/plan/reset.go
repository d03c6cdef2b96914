package plan

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// reset removes the instances of all containers (RestartAllContainers). First the marker file is written: from then on
// the reset goes on whatever else is lost. It is written again before the containers start again.
func (p *planner) reset() {
	waiting := p.giveUpContainers()
	if p.ResetMark != podstate.ResetRemoving {
		if p.Memory.Prepared() { // the marker file is in the pod's directory
			p.step(podstate.MarkReset{Mark: podstate.ResetRemoving})
		}
		return
	}
	for i := range p.Containers {
		c := &p.Containers[i]
		if !p.ResetRemoves(c) {
			continue
		}
		waiting = true
		switch {
		case c.Alive():
			why := "Container " + c.Name + " will be restarted with all containers of the pod"
			p.stop(c, p.stopOf(c, 0, podstate.CauseReset, why))
		case p.Memory.Starting(c.ID): // giveUpContainers waits for that
		default:
			p.step(podstate.RemoveContainer{ID: c.ID, Name: c.Name, KeepLog: true})
		}
	}
	if !waiting {
		p.step(podstate.MarkReset{Mark: podstate.ResetRemoved})
	}
}

// forgetReset removes the marker file of a reset once it is not needed any more.
func (p *planner) forgetReset() {
	shown := podutil.IsTrue(&p.Pod.Status, corev1.AllContainersRestarting)
	if p.ResetMark != podstate.ResetUnmarked && !shown && !slices.ContainsFunc(p.Slots, (*podstate.Slot).ResetUnreported) {
		p.step(podstate.MarkReset{Mark: podstate.ResetUnmarked})
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
