package plan

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
)

// prepare makes what a sandbox and containers need. It reports whether all volumes are mounted and all resource claims
// prepared. It waits for steps in flight that take that away: they began when the pod had to end, before the clock was
// set back or the spec changed. It also waits for missing devices: a pod that does not get them is refused.
func (p *planner) prepare() (ready bool) {
	if p.DevicesMissing != "" {
		p.wait(Wait{For: named("its devices"), Why: p.DevicesMissing})
		return false
	}
	for _, step := range p.Memory.Running() {
		if podstate.TakesAway(step) {
			p.inProgress(step)
			return false
		}
	}
	if !p.Memory.Prepared() {
		p.step(podstate.Prepare{})
		return false
	}
	if ready = p.claimsReady(); !ready {
		p.step(podstate.PrepareClaims{})
	}
	for vol := range p.Volumes() {
		v, mounted := p.Memory.Volume(vol.Name)
		ready = ready && mounted
		if mounted && !v.Stale && (v.RefreshAt.IsZero() || p.Now.Before(v.RefreshAt)) {
			p.wakeAt(v.RefreshAt)
			continue
		}
		if mount := (podstate.Mount{Volume: vol.Name}); mounted && p.PartStarts(vol) {
			p.wait(Wait{For: mount, Why: "a container that mounts a part of it is being started"})
		} else {
			p.step(mount)
		}
	}
	return ready
}

// partsReady reports whether no volume is being refreshed of which a container mounts a part.
func (p *planner) partsReady(slot *podstate.Slot) bool {
	for vol := range p.Volumes() {
		mount := podstate.Mount{Volume: vol.Name}
		busy := p.Memory.InFlight(mount.Key()) != nil || slices.Contains(p.plan.Steps, podstate.Step(mount))
		if busy && podstate.MountsPart(slot.Spec, vol) {
			return false
		}
	}
	return true
}

// claimsReady reports whether the pod's resource claims are prepared. The sandbox is created only after that. So if
// there is a sandbox, an earlier run of the agent or another agent has prepared them, unless the record of that is
// lost.
func (p *planner) claimsReady() bool {
	return !p.HasClaims() || p.Memory.ClaimsPrepared() || p.Current != nil && p.ClaimsHeld
}

// ownImage returns the step that ensures the image of a container.
func ownImage(c *corev1.Container, attempt uint32) podstate.EnsureImage {
	return podstate.EnsureImage{Container: c.Name, Attempt: attempt, Image: c.Image, Policy: c.ImagePullPolicy}
}

// createContainer plans the creation of an instance. With the policy Always its image is pulled again first if the
// container has waited for something else since the pull, such as a volume or a ConfigMap: the instance must not run
// an image that its name no longer means.
func (p *planner) createContainer(slot *podstate.Slot, create podstate.CreateContainer) {
	before := len(p.plan.Steps)
	p.step(create)
	own := ownImage(slot.Spec, create.Attempt)
	if len(p.plan.Steps) > before && p.Memory.PulledLongAgo(own, p.Now) {
		p.plan.Steps = p.plan.Steps[:before]
		p.step(own)
	}
}
