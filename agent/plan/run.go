package plan

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// decide fills in the steps: either towards running, or towards the end.
func (v *view) decide(p *Plan) {
	if v.stop != nil {
		v.tearDown(p)
		return
	}
	v.wakeAt(p, v.activeDeadline())
	ground := v.prepare(p)
	if v.resetting {
		v.reset(p)
		return
	}
	v.forgetReset(p)
	if v.current == nil {
		v.sandbox(p, ground)
	} else {
		v.sweep(p)
	}
	if _, grows := v.podGrows(); grows {
		ground = false
	}
	v.containers(p, ground)
	v.resize(p)
}

// prepare makes what a sandbox and containers stand on. It tells whether all volumes and claims are there.
func (v *view) prepare(p *Plan) (ground bool) {
	if !v.o.Memory.Prepared {
		v.step(p, Prepare{})
		return false
	}
	ground = v.claims(p)
	for i := range v.d.Pod.Spec.Volumes {
		if v.d.Pod.Spec.Volumes[i].Image != nil {
			continue // its image comes with those of the containers that mount it
		}
		name := v.d.Pod.Spec.Volumes[i].Name
		m, mounted := v.o.Memory.Volumes[name]
		ground = ground && mounted
		if mounted && !m.Stale && (m.RefreshAt.IsZero() || v.o.Now.Before(m.RefreshAt)) {
			v.wakeAt(p, m.RefreshAt)
			continue
		}
		v.step(p, Mount{Volume: name})
	}
	return ground
}

// claims has the pod's resource claims prepared, and tells whether they are. No sandbox is made before, so where there is one they have
// been prepared, in an earlier life of the agent or by another agent, unless what was noted of that is lost.
func (v *view) claims(p *Plan) bool {
	if !wantsClaims(v.d.Pod) || v.o.Memory.ClaimsPrepared || v.current != nil && v.o.ClaimsHeld {
		return true
	}
	v.step(p, PrepareClaims{})
	return false
}

// wantsClaims: the pod refers to resource claims, by itself or through extended resources that the scheduler has made a claim of.
func wantsClaims(pod *corev1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil
}

// sandbox plans a new sandbox. What lived in earlier ones must have ended, and their networks must be back.
func (v *view) sandbox(p *Plan, ground bool) {
	held := v.stopStrangers(p)
	for i := range v.slots {
		if s := &v.slots[i]; alive(s.last) {
			v.stopInstance(p, s.last, CauseSandbox, "Pod sandbox changed, it will be killed and re-created.")
			held = true
		}
	}
	claimed := v.o.Memory.ClaimsPrepared || !wantsClaims(v.d.Pod)
	if held || v.stopSandboxes(p, v.sandboxes) || !v.o.Memory.Prepared || !claimed || v.volumesFail() {
		return
	}
	attempt := uint32(0)
	if len(v.sandboxes) > 0 {
		attempt = v.sandboxes[0].Attempt + 1
	}
	v.step(p, CreateSandbox{Attempt: attempt})
}

// volumesFail: a volume could not be mounted. A first mount does not hold the sandbox up: the two go side by side.
func (v *view) volumesFail() bool {
	for key := range v.o.Memory.Failures {
		if _, mounted := v.o.Memory.Volumes[key.ID]; key.Kind == KindMount && !mounted {
			return true
		}
	}
	return false
}

// sweep removes what the pod has left behind: old dead instances, then sandboxes that hold nothing any more.
func (v *view) sweep(p *Plan) {
	kept := map[string]bool{v.current.ID: true}
	for i := range v.o.Containers {
		c := &v.o.Containers[i]
		kept[c.SandboxID] = true
		switch {
		case v.slotOf(c) != nil, v.previous(c):
		case alive(c):
			v.stopInstance(p, c, CauseEnd, stoppingReason(c.Name))
		default:
			v.step(p, RemoveContainer{ID: c.ID, Name: c.Name})
		}
	}
	for _, s := range v.sandboxes {
		if kept[s.ID] {
			continue
		}
		if !v.stopSandboxes(p, []Sandbox{s}) {
			v.step(p, RemoveSandbox{ID: s.ID, Attempt: s.Attempt})
		}
	}
}

// previous: c is the newest dead instance of a container whose newest instance is not dead. It is kept for its log and its
// end, which the status shows.
func (v *view) previous(c *Container) bool {
	for i := range v.slots {
		if s := &v.slots[i]; s.spec.Name == c.Name && s.last != nil && s.last.State != ContainerExited {
			b := v.before(s)
			return b != nil && b.ID == c.ID && c.State == ContainerExited
		}
	}
	return false
}

// containers plans the containers whose turn it is: ephemeral ones at any time, init containers one after the other with
// sidecars among them, then all the others at the same time.
func (v *view) containers(p *Plan, ground bool) {
	held := false
	for i := range v.slots {
		s := &v.slots[i]
		switch s.role {
		case podutil.RoleEphemeral:
			if v.current != nil && (s.last == nil || s.last.State != ContainerExited) {
				v.next(p, s, ground)
			}
		case podutil.RoleInit:
			if v.initialized {
				// The runtime forgot it while what comes after it was already on its way.
				v.heldUpBy(p, s, "runs once more beside the containers that come after it")
			} else if !held && !v.initDone(s) {
				v.next(p, s, ground)
				v.heldUpBy(p, s, "runs, and what comes after it waits for its end")
				held = true
			}
		case podutil.RoleSidecar:
			if !held {
				v.next(p, s, ground)
				if held = !v.initialized && !v.initDone(s); held {
					v.heldUpBy(p, s, "runs, and what comes after it waits until it has started")
				}
			}
		case podutil.RoleApp:
			if v.initialized || !held && v.current == nil && !v.hasInit() {
				v.next(p, s, ground)
			}
		}
	}
}

// heldUpBy names a running container that others wait for.
func (v *view) heldUpBy(p *Plan, s *slot, why string) {
	if s.here && s.last.State == ContainerRunning {
		p.Waits = append(p.Waits, Wait{For: "container " + s.spec.Name, Why: why})
	}
}

// hasInit: the pod has containers that come before the app containers.
func (v *view) hasInit() bool { return len(v.slots) > 0 && v.slots[0].role <= podutil.RoleSidecar }

// next plans the one next step of a container.
func (v *view) next(p *Plan, s *slot, ground bool) {
	switch {
	case s.last == nil || !s.here && s.last.State == ContainerExited:
		v.create(p, s, ground)
	case s.last.State == ContainerCreated:
		v.start(p, s)
	case !s.here:
		// It lives on in another sandbox, so it is none of this one's.
		v.stopInstance(p, s.last, CauseEnd, stoppingReason(s.spec.Name))
	case s.last.State == ContainerExited:
		if v.restarts(s) {
			v.create(p, s, ground)
		}
	case s.last.State == ContainerUnknown:
		v.stopInstance(p, s.last, CauseUnknown, `Container is in "unknown" state, try killing it before restart`)
	default:
		v.tend(p, s)
	}
}

// start plans the start of a created container, or its removal where it is not what is wanted: then the attempt, which
// has never run, is made anew.
func (v *view) start(p *Plan, s *slot) {
	start := StartContainer{ID: s.last.ID, Name: s.spec.Name}
	if s.here && !v.outdated(s) {
		if !v.strangerAlive(s.spec.Name) {
			v.step(p, start)
		}
		return
	}
	if v.inFlight(start) {
		v.awaits(p, start)
		return
	}
	v.step(p, RemoveContainer{ID: s.last.ID, Name: s.spec.Name})
}

// create plans the next instance of a container: its image at once, the instance when all it stands on is there.
func (v *view) create(p *Plan, s *slot, ground bool) {
	if v.strangerAlive(s.spec.Name) {
		return // it is being stopped, and there must never be two
	}
	attempt := s.nextAttempt()
	if s.last != nil {
		if !v.mayRestart(s) {
			return
		}
		if until := v.restartAt(s); v.o.Now.Before(until) {
			v.wakeAt(p, until)
			p.Waits = append(p.Waits, Wait{For: "container " + s.spec.Name, Why: v.backoffMessage(s), Until: until})
			return
		}
	}
	if v.images(p, s, attempt) && ground && v.current != nil {
		v.step(p, CreateContainer{Name: s.spec.Name, Attempt: attempt, SandboxID: v.current.ID, Backoff: v.nextDelay(s)})
	}
}

// images sees to the image of a container and those of the image volumes that it mounts. It tells whether all are there.
func (v *view) images(p *Plan, s *slot, attempt uint32) bool {
	all := true
	ensure := EnsureImage{Container: s.spec.Name, Attempt: attempt, Image: s.spec.Image, Policy: s.spec.ImagePullPolicy}
	have := v.o.Memory.Images[ensure.Key()]
	if have.Attempt != attempt || have.Image != s.spec.Image {
		all = false
		v.step(p, ensure)
	}
	for vol := range imageVolumes(v.d.Pod, s.spec) {
		ensure := EnsureImage{Volume: vol.Name, Image: vol.Image.Reference, Policy: vol.Image.PullPolicy}
		if v.o.Memory.Images[ensure.Key()].Image == ensure.Image {
			continue
		}
		all = false
		if !slices.Contains(p.Steps, Step(ensure)) { // another container may mount it too
			v.step(p, ensure)
		}
	}
	return all
}

// imageVolumes yields the volumes that a container mounts and that are images.
func imageVolumes(pod *corev1.Pod, c *corev1.Container) func(yield func(*corev1.Volume) bool) {
	return func(yield func(*corev1.Volume) bool) {
		for i := range pod.Spec.Volumes {
			vol := &pod.Spec.Volumes[i]
			mounted := func(m corev1.VolumeMount) bool { return m.Name == vol.Name }
			if vol.Image != nil && slices.ContainsFunc(c.VolumeMounts, mounted) && !yield(vol) {
				return
			}
		}
	}
}

// nextAttempt follows the newest instance. The status may count further, where it has seen an instance come that never ran.
func (s *slot) nextAttempt() uint32 {
	next := uint32(0)
	if s.last != nil {
		next = s.last.Attempt + 1
	}
	if s.shown != nil && s.shown.RestartCount > 0 {
		next = max(next, uint32(s.shown.RestartCount))
	}
	return next
}

// strangerAlive: an instance that is not the newest has processes.
func (v *view) strangerAlive(name string) bool {
	for i := range v.o.Containers {
		if c := &v.o.Containers[i]; c.Name == name && alive(c) && v.slotOf(c) == nil {
			return true
		}
	}
	return false
}

// mayRestart: policy lets the container run after its newest instance has ended. In a new sandbox a finished init container
// is run once more, for what it did went with the old one.
func (v *view) mayRestart(s *slot) bool {
	if s.role == podutil.RoleInit && !s.here && s.last.ExitCode == 0 {
		return true
	}
	return v.restarts(s)
}

// tend plans what a running container needs: its hook, and its end where it has become useless.
func (v *view) tend(p *Plan, s *slot) {
	verdict := v.o.Verdicts[s.last.ID]
	hook := v.o.Memory.Hooks[s.last.ID]
	switch {
	case v.outdated(s):
		v.replace(p, s, CauseSpec, "Container "+s.spec.Name+" definition changed, will be restarted", nil)
	case v.resizeRestarts(s):
		v.replace(p, s, CauseResize, "Container "+s.spec.Name+" resize requires restart", nil)
	case hook.Failure != "":
		v.replace(p, s, CauseHook, "FailedPostStartHook", nil)
	case verdict.Startup == ProbeFailure:
		v.replace(p, s, CauseProbe, v.failedProbe(s, "startup"), s.spec.StartupProbe)
	case verdict.Liveness == ProbeFailure:
		v.replace(p, s, CauseProbe, v.failedProbe(s, "liveness"), s.spec.LivenessProbe)
	case v.hookDue(s):
		v.step(p, PostStart{ID: s.last.ID, Name: s.spec.Name})
	}
	if !v.hookDue(s) && (s.spec.StartupProbe != nil || s.spec.LivenessProbe != nil || s.spec.ReadinessProbe != nil) {
		v.probe(p, s, false)
	}
}

// probe adds a running container to those that are probed.
func (v *view) probe(p *Plan, s *slot, readinessOnly bool) {
	shown := v.shown(s)
	p.Probes = append(p.Probes, ProbeTarget{ContainerID: s.last.ID, Container: s.spec, StartedAt: s.last.StartedAt,
		Started: shown.started, Ready: shown.ready, ReadinessOnly: readinessOnly})
}

// failedProbe is what people are told of a container that a probe ends.
func (v *view) failedProbe(s *slot, probe string) string {
	reason := "Container " + s.spec.Name + " failed " + probe + " probe"
	if podutil.RestartPolicy(&v.d.Pod.Spec, s.spec, s.role) == corev1.RestartPolicyNever {
		return reason
	}
	return reason + ", will be restarted"
}

// outdated: the container was made from another spec than the pod now has.
func (v *view) outdated(s *slot) bool {
	return v.changed(s) && s.role != podutil.RoleInit && s.role != podutil.RoleEphemeral
}

// changed: the newest instance was made from another spec than the pod now has, as far as can be told.
func (v *view) changed(s *slot) bool {
	want := v.d.Hashes[s.spec.Name]
	return want != "" && s.last.Hash != "" && s.last.Hash != want
}

// replace stops a running container so that policy can make the next one. A probe may set a grace of its own.
func (v *view) replace(p *Plan, s *slot, cause Cause, reason string, probe *corev1.Probe) {
	limit := podutil.GracePeriod(v.d.Pod)
	if probe != nil && probe.TerminationGracePeriodSeconds != nil {
		limit = time.Duration(*probe.TerminationGracePeriodSeconds) * time.Second
	}
	stop := StopContainer{ID: s.last.ID, Name: s.spec.Name, Deadline: v.o.Now.Add(limit), Cause: cause, Reason: reason}
	if running, stopping := v.o.Memory.InFlight[stop.Key()]; stopping {
		v.awaits(p, running)
		return
	}
	v.step(p, stop)
}

// step adds a step that may run now; one in flight or in back-off becomes a wait instead.
func (v *view) step(p *Plan, s Step) {
	key := s.Key()
	if running, busy := v.o.Memory.InFlight[key]; busy && !Overtakes(s, running) {
		if outdates(s, running) {
			p.Cancel = append(p.Cancel, key)
		}
		v.awaits(p, running)
		return
	}
	if f, failed := v.o.Memory.Failures[key]; failed && f.holds(s) && v.o.Now.Before(f.Retry()) {
		v.later(p, s, f.Message, f.Retry())
		return
	}
	if d, done := v.o.Memory.Done[key]; done && d.Step == identity(s) && v.o.Now.Before(d.At.Add(stepRetryFirst)) {
		v.later(p, s, "it was done, but what calls for it is still there", d.At.Add(stepRetryFirst))
		return
	}
	p.Steps = append(p.Steps, s)
}

// later makes a step that must not run yet into a wait.
func (v *view) later(p *Plan, s Step, why string, until time.Time) {
	v.wakeAt(p, until)
	p.Waits = append(p.Waits, Wait{For: s.String(), Why: why, Until: until})
}

func (v *view) awaits(p *Plan, s Step) {
	p.Waits = append(p.Waits, Wait{For: s.String(), Why: "in progress"})
}

// wakeAt brings the next wake-up forward to at; zero means nothing.
func (v *view) wakeAt(p *Plan, at time.Time) {
	if !at.IsZero() && (p.Wake.IsZero() || at.Before(p.Wake)) {
		p.Wake = at
	}
}

// collect brings the plan into the one order that its readers can rely on.
func (v *view) collect(p *Plan) {
	slices.SortFunc(p.Cancel, Key.Compare)
}
