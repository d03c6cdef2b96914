package plan

import "github.com/nodelet/nodelet/agent/podstate"

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
	for _, slot := range p.Slots {
		if slot.ResizesInPlace() {
			to, has := p.Allocation.Containers[slot.Spec.Name].Size, slot.Last.Size
			p.step(podstate.Resize{
				ID:           slot.Last.ID,
				Name:         slot.Spec.Name,
				To:           to,
				LowersMemory: has == nil || lower(to.Memory, has.Memory),
			})
		}
	}
	if p.PodSizeDiffers() && !p.ContainersChange() {
		has, _ := p.Memory.PodSize()
		p.step(podstate.ResizePod{To: p.Allocation.Pod.Normal(), LowersMemory: lower(p.Allocation.Pod.Memory, has.Memory)})
	}
}

// lower reports whether a limit is tighter than another; 0 is none.
func lower(next, now int64) bool { return next > 0 && (now <= 0 || next < now) }
