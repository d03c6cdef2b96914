package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// world is an in-memory node with one pod: the runtime, the disk, the pod's status in the API, and the agent's
// memory. Steps run in it as calls, and its driver decides how each call ends. It does not depend on the rules of
// plan.
type world struct {
	now     time.Time
	desired podstate.Desired // the pod's status is what the API shows
	memory  podstate.Memory
	node    podstate.Node
	// probed are the newest probe results by container ID; ends is when the agent saw containers end, by its own clock.
	probed map[string]podstate.ProbeResults
	ends   map[string]time.Time

	sandboxes  []podstate.Sandbox
	containers []podstate.Container
	// network holds the sandboxes that have an address to give back.
	network map[string]bool
	volumes map[string]bool
	// images are the images on the node; nil if each image is always there.
	images map[string]bool
	// claims: resource claims are prepared for the pod, or noted for that.
	claims      bool
	dir, cgroup bool
	// resetMark is the content of the marker file of a reset in the pod's directory.
	resetMark podstate.ResetMark
	// stopBegun: this run of the agent has planned the pod with the reason of its stop.
	stopBegun bool
	// podSize is the size of the pod's cgroup; nil if it has none or nothing is allocated.
	podSize *podstate.Size
	calls   []*call
	// made counts the instances ever made, for their IDs.
	made map[string]int
	// removesFailed: the runtime removes an instance that fails to start, as CRI-O does.
	removesFailed bool
	// mirror is the mirror pod of a static pod if it comes late; nil otherwise.
	mirror *mirror

	decide func(podstate.Desired, podstate.Observed) Plan
	plan   Plan
	// bend, if set, removes facts from the observation and the memory before plan sees them.
	bend func(*podstate.Observed, *podstate.Memory)
	// apiBehind: the status that the agent publishes does not reach the API.
	apiBehind bool
	// lagging: statuses take a while to reach the API; the driver's.
	lagging bool
	// watch, if set, is called before each event.
	watch watcher
}

// watcher checks what happens in a world.
type watcher interface {
	planned(w *world, p *Plan)
	beginning(w *world, s podstate.Step)
	started(w *world, c *podstate.Container)
	ended(w *world, c *podstate.Container)
}

// call is a step in flight.
type call struct {
	step podstate.Step
	// hash and image are those of the container that it creates.
	hash, image string
	// allocation is the allocation of the pod when the call began.
	allocation *podstate.Allocation
	// ghost: the agent that made the call was killed, so no one receives the answer.
	ghost bool
	// done: it has had its effect.
	done    bool
	problem *podstate.Problem
	// late: objects have changed since it began.
	late bool
	// failsToStart: it starts a container whose process cannot be run.
	failsToStart bool
	// unfit is what makes the sandbox that it creates unusable; empty for nothing.
	unfit unfitness
	// id is the ID of the sandbox that it has created.
	id string
	// unstarted: it removes a container that had not been started when the call began.
	unstarted bool
	// effectAt and endAt are when it has its effect and its answer; the driver's.
	effectAt, endAt time.Time
}

// backoffFirst and backoffMax are the first and the longest crash-loop back-off of the node.
const (
	backoffFirst = 10 * time.Second
	backoffMax   = 5 * time.Minute
)

// nodeWith returns the facts of a node with addresses.
func nodeWith(ips ...string) podstate.Node {
	return podstate.Node{RuntimeName: "cri", HostIPs: ips, BackoffFirst: backoffFirst, BackoffMax: backoffMax}
}

func newWorld(desired podstate.Desired, now time.Time) *world {
	return &world{
		now: now, desired: desired, memory: podstate.NewMemory(),
		node:   nodeWith("192.0.2.1"),
		probed: map[string]podstate.ProbeResults{}, ends: map[string]time.Time{}, network: map[string]bool{},
		volumes: map[string]bool{},
		made:    map[string]int{}, decide: Pod,
	}
}

func (w *world) observe() podstate.Observed {
	newestFirst := func(a, b podstate.Sandbox) int { return cmp.Compare(b.Attempt, a.Attempt) }
	sandboxes := slices.SortedFunc(slices.Values(w.sandboxes), newestFirst)
	w.memory.See(w.desired.Pod, sandboxes, w.containers, w.now)
	w.seeEnds()
	o := podstate.Observed{
		Now:        w.now,
		Sandboxes:  sandboxes,
		Containers: w.containers,
		Logged:     w.readLogs(),
		ResetMark:  w.resetMark,
		ClaimsHeld: w.claims,
		Probes:     w.probed,
		StopBegun:  w.stopBegun,
		Memory:     w.memory.Recall(),
		Node:       w.node,
	}
	if Clearing(w.desired, o) {
		o.DirOnDisk, o.CgroupExists = w.dir, w.cgroup
		o.VolumesOnDisk = slices.Sorted(maps.Keys(w.volumes))
	}
	if w.bend != nil {
		return w.bent(o)
	}
	return o
}

// seeEnds measures when containers have ended.
func (w *world) seeEnds() {
	for i := range w.containers {
		if c := &w.containers[i]; c.State == podstate.ContainerExited {
			if _, seen := w.ends[c.ID]; !seen {
				w.ends[c.ID] = w.now.Add(-max(0, w.now.Sub(c.FinishedAt)))
			}
			c.EndedAt = w.ends[c.ID]
		}
	}
}

// bent returns an observation without the facts that bend removes.
func (w *world) bent(o podstate.Observed) podstate.Observed {
	remembered := w.memory
	o.Containers = slices.Clone(o.Containers)
	w.bend(&o, &remembered)
	o.Memory = remembered.Recall()
	return o
}

// turn is one turn of the agent's loop: look, plan, publish. The steps do not begin by themselves.
func (w *world) turn() {
	w.plan = w.decide(w.desired, w.observe())
	if w.watch != nil {
		w.watch.planned(w, &w.plan)
	}
	w.memory.Report(w.plan.Status)
	w.stopBegun = w.stopBegun || w.plan.Stop != nil && w.plan.Stop.Reason != ""
	if !w.apiBehind && !w.lagging {
		w.publish()
	}
}

// publish brings the API up to what the agent has said last.
func (w *world) publish() {
	if w.memory.Reported != nil {
		w.setStatus(w.memory.Reported)
	}
}

func (w *world) begin(s podstate.Step) *call {
	if w.watch != nil {
		w.watch.beginning(w, s)
	}
	w.memory.Began(s)
	c := &call{step: s, allocation: w.desired.Allocation}
	switch s := s.(type) {
	case podstate.CreateContainer:
		c.hash = w.desired.Hashes[s.Name]
		if _, spec := podutil.Container(&w.desired.Pod.Spec, s.Name); spec != nil {
			c.image = spec.Image
		}
	case podstate.RemoveContainer:
		i := w.index(s.ID)
		c.unstarted = i >= 0 && w.containers[i].State == podstate.ContainerCreated
	}
	w.calls = append(w.calls, c)
	return c
}

// finish brings the answer of a call to the agent that waits for it.
func (w *world) finish(c *call, refreshAt time.Time) {
	w.calls = slices.DeleteFunc(w.calls, func(other *call) bool { return other == c })
	if !c.ghost {
		addReason(c)
		result := podstate.Result{Step: c.step, Problem: c.problem, ID: c.id, RefreshAt: refreshAt,
			PodSize: w.podSize}
		if s, ok := c.step.(podstate.Resize); ok {
			result.Resources = c.allocation.Containers[s.Name].Resources
		}
		w.memory.Ended(result, w.now)
	}
}

// addReason gives the failure of a call the reason that package execute gives one without its own.
func addReason(c *call) {
	if c.problem == nil || c.problem.Reason != "" {
		return
	}
	switch c.step.(type) {
	case podstate.EnsureImage:
		c.problem.Reason = podutil.ReasonErrImagePull
	case podstate.CreateContainer:
		c.problem.Reason = podutil.ReasonCreateContainer
	case podstate.StartContainer:
		c.problem.Reason = podutil.ReasonRunContainer
	}
}

// killAgent clears the memory of the agent. Its calls continue, but their answers are lost.
func (w *world) killAgent() {
	w.memory = podstate.NewMemory()
	w.stopBegun = false
	w.ends, w.probed = map[string]time.Time{}, map[string]podstate.ProbeResults{}
	for _, c := range w.calls {
		c.ghost = true
	}
}

// effect applies a step. The runtime rejects calls that are not valid in its state.
func (w *world) effect(c *call) *podstate.Problem {
	c.done = true
	switch s := c.step.(type) {
	case podstate.Prepare:
		w.prepareEffect(c)
	case podstate.Resize, podstate.ResizePod:
		return w.resizeEffect(c)
	case podstate.PrepareClaims:
		w.claims = true
	case podstate.UnprepareClaims:
		w.claims = false
	case podstate.Mount:
		w.dir, w.volumes[s.Volume] = true, true
	case podstate.Unmount:
		delete(w.volumes, s.Volume)
	case podstate.EnsureImage:
		return w.imageEffect(s)
	case podstate.CreateSandbox:
		return w.createSandbox(s, c)
	case podstate.StopSandbox:
		if box := w.sandbox(s.ID); box != nil {
			w.killSandbox(box)
			delete(w.network, s.ID)
		}
	case podstate.RemoveSandbox:
		return w.removeSandbox(s)
	case podstate.CreateContainer:
		return w.createContainer(s, c)
	case podstate.StartContainer:
		if !c.failsToStart {
			return w.startContainer(s)
		}
		w.failToStart(s.ID)
	case podstate.StopContainer:
		w.exit(s.ID, 143)
	case podstate.RemoveContainer:
		if i := w.index(s.ID); i >= 0 && w.containers[i].State == podstate.ContainerRunning {
			return &podstate.Problem{Message: "container is running"}
		}
		w.forget(s.ID)
	case podstate.RemoveCgroup:
		w.cgroup, w.podSize = false, nil
	case podstate.MarkReset:
		w.resetMark = s.Mark
	case podstate.RemoveDir:
		w.dir, w.resetMark = false, podstate.ResetUnmarked
	}
	return nil
}

func (w *world) sandbox(id string) *podstate.Sandbox {
	for i := range w.sandboxes {
		if w.sandboxes[i].ID == id {
			return &w.sandboxes[i]
		}
	}
	return nil
}

func (w *world) index(id string) int {
	return slices.IndexFunc(w.containers, func(c podstate.Container) bool { return c.ID == id })
}

// id returns a new ID that contains the name of its object.
func (w *world) id(name string, attempt uint32) string {
	id := fmt.Sprintf("%s.%d", name, attempt)
	w.made[id]++
	if n := w.made[id]; n > 1 {
		id += string(rune('a' + (n-2)%26))
	}
	return id
}

func (w *world) createSandbox(s podstate.CreateSandbox, by *call) *podstate.Problem {
	for _, box := range w.sandboxes {
		if box.Attempt == s.Attempt {
			return &podstate.Problem{Message: fmt.Sprintf("sandbox name is reserved for %s", box.ID)}
		}
	}
	box := podstate.Sandbox{ID: w.id("sandbox", s.Attempt), Attempt: s.Attempt, Ready: true, Network: podstate.NetworkHost}
	if !w.desired.Pod.Spec.HostNetwork {
		box.Network, box.IPs = podstate.NetworkPod, []string{"10.0.0.1"}
	}
	by.unfit.spoil(&box)
	by.id, w.network[box.ID] = box.ID, true
	w.sandboxes = append(slices.Clone(w.sandboxes), box)
	return nil
}

// endPause ends the process that keeps a sandbox; what else runs in it goes on.
func (w *world) endPause(id string) {
	w.sandboxes = slices.Clone(w.sandboxes)
	box := w.sandbox(id)
	box.Ready, box.IPs = false, nil
}

// killSandbox ends a sandbox and all that runs in it.
func (w *world) killSandbox(box *podstate.Sandbox) {
	id := box.ID
	w.endPause(id)
	for i := range w.containers {
		if c := &w.containers[i]; c.SandboxID == id && c.Alive() {
			w.exit(c.ID, 137)
		}
	}
}

func (w *world) removeSandbox(s podstate.RemoveSandbox) *podstate.Problem {
	if box := w.sandbox(s.ID); box != nil && box.Ready {
		return &podstate.Problem{Message: "sandbox is running"}
	}
	w.sandboxes = slices.DeleteFunc(slices.Clone(w.sandboxes), func(b podstate.Sandbox) bool { return b.ID == s.ID })
	w.containers = slices.DeleteFunc(w.containers, func(c podstate.Container) bool { return c.SandboxID == s.ID })
	return nil
}

func (w *world) createContainer(s podstate.CreateContainer, by *call) *podstate.Problem {
	if box := w.sandbox(s.SandboxID); box == nil || !box.Ready {
		return &podstate.Problem{Message: "sandbox is not ready"}
	}
	for _, c := range w.containers {
		if c.Name == s.Name && c.Attempt == s.Attempt {
			return &podstate.Problem{Message: fmt.Sprintf("container name is reserved for %s", c.ID)}
		}
	}
	if w.lacksImage(by) {
		return &podstate.Problem{Message: "no such image"}
	}
	c := podstate.Container{ID: w.id(s.Name, s.Attempt), Name: s.Name, SandboxID: s.SandboxID, Attempt: s.Attempt,
		State: podstate.ContainerCreated, Image: "image", ImageID: "image@1", Hash: by.hash}
	_, spec := podutil.Container(&w.desired.Pod.Spec, s.Name)
	c.PreStop = spec != nil && spec.Lifecycle != nil && spec.Lifecycle.PreStop != nil
	madeWith(&c, by.allocation)
	w.containers = append(w.containers, c)
	return nil
}

func (w *world) startContainer(s podstate.StartContainer) *podstate.Problem {
	i := w.index(s.ID)
	if i < 0 {
		return &podstate.Problem{Message: "no such container"}
	}
	c := &w.containers[i]
	if box := w.sandbox(c.SandboxID); box == nil || !box.Ready {
		return &podstate.Problem{Message: "sandbox is not ready"}
	}
	if c.State != podstate.ContainerCreated {
		return &podstate.Problem{Message: "container is not in created state"}
	}
	c.State, c.StartedAt = podstate.ContainerRunning, w.now
	w.leavesLog(c)
	if w.watch != nil {
		w.watch.started(w, c)
	}
	return nil
}

// exit ends a container, if it has not ended.
func (w *world) exit(id string, code int32) {
	reason := "Completed"
	if code != 0 {
		reason = "Error"
	}
	w.exitWith(id, code, reason)
}

// exitWith ends a container as exit does, with the reason that the runtime gives.
func (w *world) exitWith(id string, code int32, reason string) {
	i := w.index(id)
	if i < 0 || !w.containers[i].Alive() {
		return
	}
	c := &w.containers[i]
	c.State, c.FinishedAt = podstate.ContainerExited, w.now
	c.ExitCode, c.Reason = code, reason
	delete(w.probed, id)
	if w.watch != nil {
		w.watch.ended(w, c)
	}
}

// failToStart does to a created container whose process cannot be run what the runtime does: containerd ends it.
func (w *world) failToStart(id string) {
	switch i := w.index(id); {
	case i < 0 || w.containers[i].State != podstate.ContainerCreated:
	case w.removesFailed:
		w.forget(id)
	default:
		c := &w.containers[i]
		c.State, c.FinishedAt = podstate.ContainerExited, w.now
		c.ExitCode, c.Reason = 128, "StartError"
		w.leavesLog(c)
	}
}

// forget makes the runtime forget a container, and the container end if it ran.
func (w *world) forget(id string) {
	w.exit(id, 137)
	w.containers = slices.DeleteFunc(w.containers, func(c podstate.Container) bool { return c.ID == id })
}

// newest is the ID of the newest instance of the named container.
func (w *world) newest(name string) string {
	if c := podstate.Newest(w.containers, name); c != nil {
		return c.ID
	}
	return ""
}
