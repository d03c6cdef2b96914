package plan

import (
	"time"

	"github.com/nodelet/nodelet/agent/podstate"
)

// resize plans what brings a running pod to the resources that are allocated to it. Its own cgroup grows before its
// containers do, and shrinks after them; until the pod is prepared its size is not known.
func (p *planner) resize() {
	if p.Allocation == nil || !p.Memory.Prepared() {
		return
	}
	if size, grows := p.PodGrows(); grows {
		p.step(podstate.ResizePod{To: size})
		return
	}
	lowering, others, holder := p.resizes()
	for _, s := range lowering {
		p.step(s)
	}
	for _, s := range others {
		if holder == "" {
			p.step(s)
		} else {
			p.later(s, "begins when container "+holder+" has its lower memory limit", time.Time{})
		}
	}
	if p.PodSizeDiffers() && !p.ContainersChange() {
		has, _ := p.Memory.PodSize()
		p.step(podstate.ResizePod{To: p.Allocation.Pod.Normal(), LowersMemory: lower(p.Allocation.Pod.Memory, has.Memory)})
	}
}

// resizes returns the resizes in place: those that lower memory, and the others. While a running container still has to
// get less memory, which may be refused for good, it is the holder of the others: they keep what they have, because
// together the containers could use more than the pod's cgroup has. One that restarts for that has it until it ends.
func (p *planner) resizes() (lowering, others []podstate.Resize, holder string) {
	for _, slot := range p.Slots {
		inPlace := slot.ResizesInPlace()
		if !inPlace && !slot.ResizeRestarts() {
			continue
		}
		s := p.resizeOf(slot)
		if s.LowersMemory {
			holder = s.Name
		}
		switch {
		case inPlace && s.LowersMemory:
			lowering = append(lowering, s)
		case inPlace:
			others = append(others, s)
		}
	}
	return lowering, others, holder
}

// resizeOf returns the resize of a running container to its allocated size. One in flight may have had its effect.
func (p *planner) resizeOf(slot *podstate.Slot) podstate.Resize {
	to, has := p.Allocation.Containers[slot.Spec.Name].Size, slot.Last.Size
	s := podstate.Resize{ID: slot.Last.ID, Name: slot.Spec.Name, To: to}
	running, changes := p.Memory.InFlight(s.Key()).(podstate.Resize)
	s.LowersMemory = has == nil || lower(to.Memory, has.Memory) || changes && lower(to.Memory, running.To.Memory)
	return s
}

// lower reports whether a limit is tighter than another; 0 is none.
func lower(next, now int64) bool { return next > 0 && (now <= 0 || next < now) }
