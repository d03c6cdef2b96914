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
	// unfit are the new sandboxes in a row in which no container was started before they were lost. unused is the newest
	// one that this run of the agent has created, as long as that is open.
	unfit  failures
	unused string
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
	ru.unfit, ru.unused = failures{}, ""
	clear(ru.imaged)
	clear(ru.stopped)
	clear(ru.preStopped)
	clear(ru.hookFailed)
	clear(ru.lostUntil)
	for i := range ru.byStop {
		ru.ownEnd(&ru.byStop[i])
	}
	ru.byStop = nil
	pod := ru.l.desired.Pod
	for _, c := range ru.l.containers {
		st := podutil.ContainerStatus(&pod.Status, c.Name)
		ru.unhooked[c.ID] = podutil.IsStatic(pod) || c.State != podstate.ContainerRunning || st == nil ||
			podutil.RuntimeID(st.ContainerID) != c.ID || st.State.Waiting == nil
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
			shown := podstate.FromStatus(podutil.StatusIn(list, name))
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
	if c.problem.Reason != podutil.ReasonPostStartHook && !c.late {
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
