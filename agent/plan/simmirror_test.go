package plan

import (
	"maps"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// mirror is what the API server and the disk have of a static pod whose mirror pod comes late.
type mirror struct {
	// known: this run of the agent knows the mirror pod. Until then it comes at a time, and no status reaches the API.
	known  bool
	at     time.Time
	status corev1.PodStatus
	// logs is how many attempts of its containers have left logs, by name. logged is what the agent has read of that;
	// nil if it has to read it.
	logs, logged map[string]uint32
}

// mirrorComesLate makes the pod of some runs a static pod whose mirror pod comes late, as on a node whose API server is
// such a pod. In all others the agent has the mirror pod at once. The choice is as that of shortOfDisk.
func (l *simRun) mirrorComesLate() {
	if l.seed%17 == 8 {
		l.desired.Pod.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
		l.mirror = &mirror{logs: map[string]uint32{}}
		l.hideMirror()
	}
}

// setStatus changes the status in the API. A static pod that has ended starts again, so its phase does not count.
func (w *world) setStatus(status *corev1.PodStatus) {
	shown := *status
	if w.mirror != nil {
		if !w.mirror.known {
			return
		}
		w.mirror.status = *status
		if podutil.IsTerminal(shown.Phase) {
			shown.Phase = ""
			shown.Reason, shown.Message = "", ""
		}
	}
	w.desired.Pod.Status = shown
}

// apiHas reports whether the API has a status, or cannot get it because the agent does not know the mirror pod.
func (w *world) apiHas(status *corev1.PodStatus) bool {
	if m := w.mirror; m != nil {
		return !m.known || reflect.DeepEqual(&m.status, status)
	}
	return reflect.DeepEqual(&w.desired.Pod.Status, status)
}

// hideMirror takes the mirror pod from a new run of the agent. It comes later.
func (l *simRun) hideMirror() {
	if m := l.mirror; m != nil {
		m.known, m.logged = false, nil
		m.at = later(l.now, l.down).Add(l.within(3 * l.every))
		l.desired.Pod.Status = corev1.PodStatus{}
	}
}

// mirrorComes gives the agent the mirror pod, as its worker takes it. A pod without a source has none.
func (l *simRun) mirrorComes() {
	m := l.mirror
	if m.at = (time.Time{}); l.desired.Stop.Is(podstate.StopOrphaned) {
		return
	}
	l.note("the mirror pod comes with %+v", m.status)
	m.known = true
	if m.status.StartTime != nil {
		l.memory.Resume()
		m.logged = nil
	}
	l.setStatus(&m.status)
	for _, last := range l.last {
		last.finishedAt = time.Time{} // the status no longer shows it
	}
	for name := range l.specs { // the end that the mirror pod shows counts where there is no instance yet
		shown := podutil.ContainerStatus(&m.status, name)
		if shown != nil && shown.State.Terminated != nil && podstate.Newest(l.containers, name) == nil {
			l.forgotten[name] = true
		}
	}
}

// readLogs returns what the agent knows of the logs; see podstate.Observed.
func (w *world) readLogs() map[string]uint32 {
	m := w.mirror
	if m == nil {
		return nil
	}
	if m.logged == nil {
		m.logged = maps.Clone(m.logs)
	}
	return m.logged
}

// leavesLog records that an instance has a log.
func (w *world) leavesLog(c *podstate.Container) {
	if m := w.mirror; m != nil {
		m.logs[c.Name] = max(m.logs[c.Name], c.Attempt+1)
	}
}

// reboots starts the machine again, in a run with a late mirror pod. Some runtimes lose their containers with that, and
// some machines their logs.
func (l *simRun) reboots() bool {
	if l.mirror == nil || !chance(l.r, 4) {
		return false
	}
	l.note("the machine starts again")
	l.crashAgent()
	l.calls = nil
	l.cgroup, l.podSize = false, nil
	clear(l.volumes)
	for _, box := range l.sandboxes {
		l.killSandbox(&box)
	}
	if chance(l.r, 2) {
		l.note("the runtime has lost its containers")
		for _, c := range slices.Clone(l.containers) {
			l.forget(c.ID)
			l.lost(c.Name)
		}
		l.sandboxes = nil
		if chance(l.r, 3) {
			l.note("the logs were in memory")
			clear(l.mirror.logs)
		}
	}
	return true
}

// unlogged checks that a static pod's instance gets a number after those that have left logs: it would write to one.
func (ru *rules) unlogged(s podstate.CreateContainer) {
	if m := ru.l.mirror; m != nil && s.Attempt < m.logs[s.Name] {
		ru.breaks("%s, and attempt %d has left a log", s, m.logs[s.Name]-1)
	}
}

// undisturbed checks that the newest instance of a container, which runs in the current sandbox, is stopped only for a
// reason of its own, unless the pod ends, and that no ephemeral one is stopped because its state is unknown.
func (ru *rules) undisturbed(s podstate.StopContainer) {
	if s.Cause == podstate.CauseUnknown && ru.roles[s.Name] == podutil.RoleEphemeral {
		ru.breaks("%s, which never runs again", s)
	}
	if s.Cause != podstate.CauseEnd && s.Cause != podstate.CauseSandbox || ru.stopping() || ru.pastDeadline() ||
		podstate.New(ru.l.desired, ru.l.observe()).Completed() {
		return
	}
	boxes := ru.l.sandboxes
	c := podstate.Newest(ru.l.containers, s.Name)
	if c != nil && c.ID == s.ID && c.State == podstate.ContainerRunning && len(boxes) > 0 &&
		ru.l.usable(&boxes[len(boxes)-1]) && boxes[len(boxes)-1].ID == c.SandboxID {
		ru.breaks("%s, which is in its place", s)
	}
}
