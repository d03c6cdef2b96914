package plan

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// rules check the invariants of a pod: they hold whatever happens to it. They know the simulated world, but not how
// plan decides.
type rules struct {
	l *simRun
	// broken says how an invariant was broken, and brokenBy which one; empty while all hold.
	broken, brokenBy string

	roles map[string]podutil.Role
	specs map[string]*corev1.Container
	// last is the newest instance of each container that was started; ran are all that were, as name.attempt.
	last map[string]*instanceFact
	ran  map[string]string
	// initDone and sidecarUp hold, as sandbox/container, which init containers have succeeded and which sidecars have
	// started in a sandbox.
	initDone, sidecarUp map[string]bool
	// delays are the crash-loop back-offs that this run of the agent must respect, by name.attempt.
	delays map[string]time.Duration
	// failed are the failed steps that must not be tried again at once, by key.
	failed map[podstate.Key]failedAt
	// unstarted are the failed starts in a row after which the runtime has removed the instance, by container.
	unstarted map[string]failures
	// unfit are the new sandboxes in a row that were not usable.
	unfit failures
	// hooked are the containers whose postStart hook has succeeded; unhooked those for which that is not known, by ID.
	hooked, unhooked map[string]bool
	// forgotten marks the containers of which the runtime has lost an instance.
	forgotten map[string]bool
	// imaged are the images that this run of the agent has ensured, by container.
	imaged map[string]podstate.Image
	// unmounted are the volumes of which the agent cannot know that they are not mounted.
	unmounted map[string]bool
	// stopped is why this run of the agent has last stopped a container, by ID.
	stopped map[string]podstate.Cause
	// preStopped are the containers, by ID, whose preStop hook this run of the agent has begun, and hookFailed those for
	// which the runtime failed to run it last.
	preStopped, hookFailed map[string]bool
	// lostUntil is when all containers of a lost sandbox must have ended, by its ID, since this run of the agent has
	// begun to stop them.
	lostUntil map[string]time.Duration
	// resetAsked: the exit of a container has requested a reset, which restarts all containers.
	resetAsked bool
	// byStop are the ends of containers that this run of the agent has stopped to restart them. For the next run, which
	// does not know that, these containers have ended by themselves.
	byStop []podstate.Container
	// result is what is known of the end of a pod whose stop has a reason.
	result result
	// owed are the containers that were removed for a reset and must start again, even if the agent is killed and the
	// API does not show the reset.
	owed map[string]bool
}

type instanceFact struct {
	id, sandbox, hash string
	attempt           uint32
	ended             bool
	endedAt           time.Duration
	finishedAt        time.Time
	code              int32
	// starved: a process of the init container was killed for lack of memory, so it has failed, also with code 0.
	starved bool
	// long: by the runtime's clock it ran long enough to reset the back-off. No other clock is known.
	long   bool
	ranFor time.Duration // by the runtime's clock
	made   *corev1.ResourceRequirements
}

type failedAt struct {
	what podstate.Step
	at   time.Duration
}

func newRules(l *simRun) *rules {
	ru := &rules{
		l:          l,
		last:       map[string]*instanceFact{},
		ran:        map[string]string{},
		initDone:   map[string]bool{},
		sidecarUp:  map[string]bool{},
		delays:     map[string]time.Duration{},
		failed:     map[podstate.Key]failedAt{},
		unstarted:  map[string]failures{},
		hooked:     map[string]bool{},
		unhooked:   map[string]bool{},
		forgotten:  map[string]bool{},
		imaged:     map[string]podstate.Image{},
		unmounted:  map[string]bool{},
		stopped:    map[string]podstate.Cause{},
		owed:       map[string]bool{},
		preStopped: map[string]bool{},
		hookFailed: map[string]bool{},
		lostUntil:  map[string]time.Duration{},
	}
	ru.knowPod(l.desired.Pod)
	return ru
}

// breaks records that the invariant whose function calls it is broken.
func (ru *rules) breaks(format string, args ...any) {
	if ru.broken == "" {
		caller, _, _, _ := runtime.Caller(1)
		name := runtime.FuncForPC(caller).Name()
		ru.brokenBy, _, _ = strings.Cut(name[strings.LastIndex(name, ".")+1:], "-") // without a loop of the function
		ru.broken = fmt.Sprintf(format, args...)
		ru.l.note("BROKEN: %s", ru.broken)
	}
}

// knowPod records the containers of the pod.
func (ru *rules) knowPod(pod *corev1.Pod) {
	ru.roles, ru.specs = map[string]podutil.Role{}, containersOf(pod)
	for name := range ru.specs {
		ru.roles[name] = podutil.RoleEphemeral
	}
	for _, c := range pod.Spec.InitContainers {
		ru.roles[c.Name] = podutil.RoleInit
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			ru.roles[c.Name] = podutil.RoleSidecar
		}
	}
	for _, c := range pod.Spec.Containers {
		ru.roles[c.Name] = podutil.RoleApp
	}
}

// mono returns the monotonic time, which jumps of the wall clock do not change.
func (ru *rules) mono() time.Duration { return ru.l.now.Sub(ru.l.birth) }

func (ru *rules) agentKilled() {
	clear(ru.delays)
	clear(ru.failed)
	clear(ru.unstarted)
	ru.unfit = failures{}
	clear(ru.imaged)
	clear(ru.stopped)
	clear(ru.preStopped)
	clear(ru.hookFailed)
	clear(ru.lostUntil)
	for i := range ru.byStop {
		ru.ownEnd(&ru.byStop[i])
	}
	ru.byStop = nil
	for _, c := range ru.l.containers {
		ru.unhooked[c.ID] = true
	}
	ru.traceless()
}

// traceless removes the expectations for containers of which no trace is left: the runtime has lost them, the agent
// that remembered them was killed, and the API does not show them.
func (ru *rules) traceless() {
	st := &ru.l.desired.Pod.Status
	for name := range ru.forgotten {
		last := ru.last[name]
		if last == nil {
			continue
		}
		heard := false
		for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses,
			st.EphemeralContainerStatuses} {
			shown := podstate.Lost(podutil.StatusIn(list, name))
			heard = heard || shown != nil && shown.Attempt >= last.attempt
		}
		if !heard {
			maps.DeleteFunc(ru.ran, func(key, _ string) bool { return strings.HasPrefix(key, name+".") })
		}
	}
}

// stopping reports whether it is known that the pod must end.
func (ru *rules) stopping() bool {
	reported := ru.l.memory.Reported
	return ru.l.desired.Stop != nil || ru.l.desired.Rejected != nil ||
		podutil.IsTerminal(ru.l.desired.Pod.Status.Phase) ||
		reported != nil && podutil.IsTerminal(reported.Phase)
}

func (ru *rules) someAlive(in func(*podstate.Container) bool) *podstate.Container {
	for i := range ru.l.containers {
		if c := &ru.l.containers[i]; c.Alive() && in(c) {
			return c
		}
	}
	return nil
}

// started checks a container that has been started.
func (ru *rules) started(w *world, c *podstate.Container) {
	ru.l.tally.starts++
	ru.l.note("%s runs", c.ID)
	if other := ru.someAlive(func(o *podstate.Container) bool { return o.Name == c.Name && o.ID != c.ID }); other != nil {
		ru.breaks("%s runs while %s does", c.ID, other.ID)
	}
	key := fmt.Sprintf("%s.%d", c.Name, c.Attempt)
	// Without the mirror pod, the agent does not know that an instance which was created late has an old number.
	if before, again := ru.ran[key]; again && ru.l.mirror == nil {
		ru.breaks("%s is the second instance that runs as attempt %d, after %s", c.ID, c.Attempt, before)
	}
	ru.ran[key] = c.ID
	ru.notFinal(c)
	delete(ru.owed, c.Name)
	ru.last[c.Name] = &instanceFact{
		id:      c.ID,
		sandbox: c.SandboxID,
		hash:    c.Hash,
		attempt: c.Attempt,
		made:    c.Made,
	}
	ru.l.willExit(c)
}

// notFinal checks that no status has shown the container as terminated although its restart policy makes that final:
// the API then accepts no other state. The status of a pod that no source has is not published. In a pod that must end,
// a start can take effect that an agent had requested before it was killed: the next agent cannot know of it.
func (ru *rules) notFinal(c *podstate.Container) {
	if ru.l.desired.Stop.Is(podstate.StopOrphaned) || ru.stopping() && ru.startedLate(c) {
		return
	}
	pod := ru.l.desired.Pod
	status := &pod.Status
	if ru.l.memory.Reported != nil {
		status = ru.l.memory.Reported
	}
	shown := podutil.ContainerStatus(status, c.Name)
	if ru.roles[c.Name] != podutil.RoleApp || ru.forgotten[c.Name] || podutil.RestartsAll(&pod.Spec) ||
		shown == nil || shown.State.Terminated == nil {
		return
	}
	if code := shown.State.Terminated.ExitCode; !ru.mayRunAgain(c.Name, code) {
		ru.breaks("%s runs although the status has shown %s as terminated with %d for good", c.ID, c.Name, code)
	}
}

// startedLate reports whether an agent that has been killed since requested the start of the container.
func (ru *rules) startedLate(c *podstate.Container) bool {
	return slices.ContainsFunc(ru.l.calls, func(call *call) bool {
		start, ok := call.step.(podstate.StartContainer)
		return ok && call.ghost && start.ID == c.ID
	})
}

// ended records that a container has ended.
func (ru *rules) ended(w *world, c *podstate.Container) {
	starved := ru.roles[c.Name] == podutil.RoleInit && c.Reason == "OOMKilled"
	if f := ru.last[c.Name]; f != nil && f.id == c.ID {
		f.ended, f.endedAt = true, ru.mono()
		f.finishedAt = c.FinishedAt
		f.code, f.starved = c.ExitCode, starved
		f.ranFor = c.FinishedAt.Sub(c.StartedAt)
		f.long = f.ranFor >= podstate.BackoffReset
	}
	if ru.cutOff(c.Name, c.ID) {
		ru.byStop = append(ru.byStop, *c)
	} else {
		ru.ownEnd(c)
	}
}

// ownEnd records what follows from the exit code of a container that the agent has not stopped to restart it.
func (ru *rules) ownEnd(c *podstate.Container) {
	ru.resetAsked = ru.resetAsked || slices.Contains(ru.resetCodes(c.Name), c.ExitCode)
	if ru.roles[c.Name] == podutil.RoleInit && c.ExitCode == 0 && c.Reason != "OOMKilled" {
		ru.initDone[c.SandboxID+"/"+c.Name] = true
	}
}

// resetCodes returns the exit codes with which a container requests a reset. In the simulation such a rule lists them.
func (ru *rules) resetCodes(name string) (codes []int32) {
	if spec := ru.specs[name]; spec != nil {
		for _, rule := range spec.RestartPolicyRules {
			if rule.Action == corev1.ContainerRestartRuleActionRestartAllContainers {
				codes = append(codes, rule.ExitCodes.Values...)
			}
		}
	}
	return codes
}

// answered records that the answer of a call has reached the agent.
func (ru *rules) answered(c *call) {
	ru.imageAnswered(c)
	ru.startAnswered(c)
	ru.stopAnswered(c)
	ru.sandboxAnswered(c)
	key := c.step.Key()
	switch s := c.step.(type) {
	case podstate.Mount:
		if c.problem == nil {
			ru.unmounted[s.Volume] = !ru.l.volumes[s.Volume]
		}
	case podstate.PreStop:
		ru.hookFailed[s.ID] = c.problem != nil && !c.problem.Cancelled
	}
	if c.problem == nil || c.problem.Cancelled {
		delete(ru.failed, key)
		return
	}
	if _, hook := c.step.(podstate.PostStart); !hook && !c.late {
		ru.failed[key] = failedAt{c.step, ru.mono()}
	}
}

// startAnswered records the answer to the start of a container.
func (ru *rules) startAnswered(c *call) {
	switch s, ok := c.step.(podstate.StartContainer); {
	case !ok:
	case c.problem == nil:
		delete(ru.unstarted, s.Name)
	case c.failsToStart && !c.problem.Cancelled && ru.l.index(s.ID) < 0:
		ru.unstarted[s.Name] = failures{ru.unstarted[s.Name].count + 1, ru.mono()}
	}
}

// unstartedWaits checks that the delays double from a second to a minute if the runtime removes each instance because
// it does not start.
func (ru *rules) unstartedWaits(s podstate.CreateContainer) {
	f := ru.unstarted[s.Name]
	if waited := ru.mono() - f.last; waited < f.delay() {
		ru.breaks("%s %s after the failed start number %d", s, waited, f.count)
	}
}

// beginning checks a step that is about to begin.
func (ru *rules) beginning(w *world, s podstate.Step) {
	if running, busy := w.memory.InFlight[s.Key()]; busy && !podstate.Overtakes(s, running) {
		ru.breaks("%s begins while %s is in flight", s, running)
	}
	if f, failed := ru.failed[s.Key()]; failed && podstate.SameStep(f.what, s) &&
		ru.mono() < f.at+podstate.StepRetryFirst {
		ru.breaks("%s is tried again %s after it failed", s, ru.mono()-f.at)
	}
	ru.oneWay(w, s)
	switch s := s.(type) {
	case podstate.Prepare, podstate.PrepareClaims, podstate.Mount, podstate.EnsureImage, podstate.PostStart:
		ru.forward(s)
	case podstate.StartContainer:
		ru.forward(s)
		ru.hooksBefore(s, s.Name)
	case podstate.CreateSandbox:
		ru.forward(s)
		ru.claimsFirst(s)
		ru.sandboxWaits(s)
		ru.fewSandboxes(w, &w.plan)
	case podstate.UnprepareClaims:
		if c := ru.someAlive(func(*podstate.Container) bool { return true }); c != nil {
			ru.breaks("%s while %s runs", s, c.ID)
		}
	case podstate.Resize, podstate.ResizePod:
		ru.beginningResize(w, s)
	case podstate.CreateContainer:
		ru.forward(s)
		ru.claimsFirst(s)
		ru.volumesFirst(w, s)
		ru.imageFirst(s)
		ru.podHasRoom(w, s)
		ru.hooksBefore(s, s.Name)
		ru.creating(s)
		ru.unlogged(s)
	case podstate.PreStop:
		ru.preStopping(s)
	case podstate.StopContainer:
		ru.hookFirst(s)
		ru.stopBegins(s)
		ru.stoppingOne(s)
	case podstate.RemoveContainer:
		if s.KeepLog {
			ru.resetting(s)
		}
	case podstate.StopSandbox:
		if c := ru.someAlive(func(c *podstate.Container) bool { return c.SandboxID == s.ID }); c != nil {
			ru.breaks("%s while %s runs in it", s, c.ID)
		}
	case podstate.Unmount:
		if c := ru.someAlive(func(*podstate.Container) bool { return true }); c != nil {
			ru.breaks("%s while %s runs", s, c.ID)
		}
	}
	if _, create := s.(podstate.CreateSandbox); create {
		ru.l.tally.sandboxes++
		if c := ru.someAlive(func(*podstate.Container) bool { return true }); c != nil {
			ru.breaks("%s while %s runs in another", s, c.ID)
		}
	}
}

// oneWay checks that a step does not begin while its opposite is in flight, because their order is not known then.
func (ru *rules) oneWay(w *world, s podstate.Step) {
	opposite := podstate.Step(nil)
	switch s := s.(type) {
	case podstate.Prepare:
		opposite = podstate.RemoveCgroup{}
	case podstate.RemoveCgroup:
		opposite = podstate.Prepare{}
	case podstate.PrepareClaims:
		opposite = podstate.UnprepareClaims{}
	case podstate.UnprepareClaims:
		opposite = podstate.PrepareClaims{}
	case podstate.Mount:
		opposite = podstate.Unmount{Volume: s.Volume}
	case podstate.Unmount:
		opposite = podstate.Mount{Volume: s.Volume}
	case podstate.StartContainer:
		opposite = podstate.RemoveContainer{ID: s.ID}
	case podstate.RemoveContainer:
		opposite = podstate.StartContainer{ID: s.ID}
	default:
		return
	}
	if w.memory.InFlight[opposite.Key()] != nil {
		ru.breaks("%s begins while %s is in flight", s, opposite)
	}
}

// claimsFirst checks that nothing of a pod is created before its resource claims are prepared.
func (ru *rules) claimsFirst(s podstate.Step) {
	if len(ru.l.desired.Pod.Spec.ResourceClaims) > 0 && !ru.l.claims {
		ru.breaks("%s before the pod's resource claims are prepared", s)
	}
}

// volumesFirst checks that no container is created before the pod's volumes are mounted.
func (ru *rules) volumesFirst(w *world, s podstate.Step) {
	for _, v := range w.desired.Pod.Spec.Volumes {
		if !w.volumes[v.Name] && !ru.unmounted[v.Name] {
			ru.breaks("%s before volume %s is mounted", s, v.Name)
		}
	}
}

func (ru *rules) forward(s podstate.Step) {
	if ru.stopping() {
		ru.breaks("%s begins in a pod that must end", s)
	}
	if ru.pastDeadline() {
		ru.breaks("%s begins in a pod whose deadline has passed", s)
	}
}

// hooksBefore checks that no container is created or started while one before it is created or started, or runs its
// postStart hook.
func (ru *rules) hooksBefore(s podstate.Step, name string) {
	if ru.roles[name] == podutil.RoleEphemeral {
		return
	}
	for _, c := range podutil.Containers(&ru.l.desired.Pod.Spec) {
		if c.Name == name {
			return
		}
		if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
			continue
		}
		for _, other := range ru.l.memory.InFlight {
			if startsOrHooks(other, c.Name) {
				ru.breaks("%s while %s is in flight", s, other)
			}
		}
		newest := podstate.Newest(ru.l.containers, c.Name)
		if newest == nil || newest.State != podstate.ContainerRunning || ru.hookThrough(newest, c) {
			continue
		}
		_, failed := ru.l.memory.Hooks[newest.ID]
		if _, stopped := ru.l.memory.Stopped[newest.ID]; !failed && !stopped {
			ru.breaks("%s before the postStart hook of %s", s, newest.ID)
		}
	}
}

// startsOrHooks reports whether a step creates or starts the named container, or runs its postStart hook.
func startsOrHooks(s podstate.Step, name string) bool {
	switch s := s.(type) {
	case podstate.CreateContainer:
		return s.Name == name
	case podstate.StartContainer:
		return s.Name == name
	case podstate.PostStart:
		return s.Name == name
	}
	return false
}

func (ru *rules) creating(s podstate.CreateContainer) {
	spec := ru.specs[s.Name]
	if c := ru.someAlive(func(c *podstate.Container) bool { return c.Name == s.Name }); c != nil {
		ru.breaks("%s while %s runs", s, c.ID)
	}
	ru.unstartedWaits(s)
	ru.inOrder(s)
	last := ru.last[s.Name]
	if last == nil {
		ru.delays[s.Name+".0"] = 0
		return
	}
	// A replaced container did not crash, even if its spec has changed back since.
	changed := last.hash != ru.l.desired.Hashes[s.Name] || ru.replaced(last.id) || ru.otherSize(s.Name, last.made)
	ru.workKept(s)
	ru.policyKept(s, last)
	if ru.roles[s.Name] != podutil.RoleEphemeral && spec != nil {
		ru.backoffKept(s, last, changed)
	}
}

// inOrder checks the order in this sandbox: an init container starts after all init containers before it have
// completed, and an app container after all of them.
func (ru *rules) inOrder(s podstate.CreateContainer) {
	if ru.roles[s.Name] == podutil.RoleEphemeral {
		return
	}
	for _, c := range ru.l.desired.Pod.Spec.InitContainers {
		if c.Name == s.Name {
			return
		}
		key := s.SandboxID + "/" + c.Name
		if ru.roles[c.Name] == podutil.RoleInit && !ru.initDone[key] || ru.roles[c.Name] == podutil.RoleSidecar &&
			!ru.sidecarUp[key] {
			ru.breaks("%s before %s has completed in this sandbox", s, c.Name)
		}
	}
}

// workKept checks that an init container does not run again after a later container has started in the same sandbox.
func (ru *rules) workKept(s podstate.CreateContainer) {
	if ru.roles[s.Name] != podutil.RoleInit || !ru.initDone[s.SandboxID+"/"+s.Name] {
		return
	}
	after := map[string]bool{}
	found := false
	for role, c := range podutil.Containers(&ru.l.desired.Pod.Spec) {
		after[c.Name] = found && role != podutil.RoleEphemeral
		found = found || c.Name == s.Name
	}
	for i := range ru.l.containers {
		if c := &ru.l.containers[i]; after[c.Name] && c.SandboxID == s.SandboxID && c.State != podstate.ContainerCreated {
			ru.breaks("%s although %s has started after it in this sandbox", s, c.ID)
		}
	}
}

// policyKept checks that a container runs again only if its restart policy allows it, its spec has changed, or it is
// an init container whose sandbox was lost.
func (ru *rules) policyKept(s podstate.CreateContainer, last *instanceFact) {
	switch {
	case !last.ended, ru.forgotten[s.Name], ru.mustRunAgain(s.Name, last.id, last.code):
	case last.starved && ru.policy(s.Name) != corev1.RestartPolicyNever:
	case ru.roles[s.Name] == podutil.RoleInit && last.code == 0 && !last.starved && last.sandbox != s.SandboxID:
	default:
		ru.breaks("%s although %s has exited with %d", s, last.id, last.code)
	}
}

func doubled(delay time.Duration) time.Duration {
	return min(max(backoffFirst, 2*delay), backoffMax)
}

// resetWaits checks that a container which a reset has removed waits for its back-off, unless it ran for at least
// that long. The times are those of the status, which have no fractions of a second. An end in the future does not
// count, nor one that the agent may not have seen, because the runtime lost the instance, or does not see any more in
// the status of a mirror pod that came late.
func (ru *rules) resetWaits(s podstate.CreateContainer, last *instanceFact, delay time.Duration) {
	waited := ru.l.now.Sub(last.finishedAt)
	known := ru.owed[s.Name] && last.ended && s.Attempt == last.attempt+1
	if known && waited >= 0 && max(waited, last.ranFor) < delay-time.Second {
		ru.breaks("%s %s after %s has ended, which a reset has removed; its back-off is %s", s, waited, last.id, delay)
	}
}

// backoffKept checks that the delays double from ten seconds to the limit, and start over after a long run or for a new
// spec.
func (ru *rules) backoffKept(s podstate.CreateContainer, last *instanceFact, changed bool) {
	this, before := fmt.Sprintf("%s.%d", s.Name, s.Attempt), fmt.Sprintf("%s.%d", s.Name, last.attempt)
	delay, known := ru.delays[before]
	switch {
	case changed:
		ru.delays[this] = 0
		return
	case ru.forgotten[s.Name] || !last.ended:
		ru.resetWaits(s, last, delay)
		ru.delays[this] = s.Backoff
		return
	case last.long:
		delay = 0
	case !known:
		delay = s.Backoff / 2
		if s.Backoff == backoffFirst {
			delay = 0
		}
	}
	probed := ru.stopped[last.id] == podstate.CauseProbe
	outside := probed || last.sandbox != s.SandboxID // as far as is known, it did not end by itself
	if waited := ru.mono() - last.endedAt; known && waited < delay && !(outside && last.ranFor >= delay) {
		ru.breaks("%s %s after %s has ended; its back-off is %s", s, waited, last.id, delay)
	}
	want := doubled(delay)
	if probed && last.attempt == 0 {
		want = 0
	}
	// An attempt after that instance that the status has counted, although it never ran, may count as a crash.
	counted, also := ru.delays[fmt.Sprintf("%s.%d", s.Name, s.Attempt-1)]
	if known && s.Backoff != want && !(also && s.Attempt-1 > last.attempt && s.Backoff == doubled(counted)) {
		ru.breaks("%s sets a back-off of %s, want %s", s, s.Backoff, want)
	}
	if s.Backoff < backoffFirst && want > 0 || s.Backoff > backoffMax {
		ru.breaks("%s sets a back-off of %s", s, s.Backoff)
	}
	ru.delays[this] = s.Backoff
}
