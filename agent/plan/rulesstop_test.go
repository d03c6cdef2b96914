package plan

import "github.com/nodelet/nodelet/agent/podstate"

import podutil "github.com/nodelet/nodelet/kube/pod"

// preStopping checks a preStop hook that runs by a step of its own: it is that of a sidecar that has to wait for
// others, in a pod that ends, and it runs once.
func (ru *rules) preStopping(s podstate.PreStop) {
	others := ru.someAlive(func(c *podstate.Container) bool { return c.Name != s.Name })
	switch i := ru.l.index(s.ID); {
	case ru.preStopped[s.ID]:
		ru.breaks("%s for the second time", s)
	case ru.roles[s.Name] != podutil.RoleSidecar || others == nil:
		ru.breaks("%s before its turn although it waits for no other container", s)
	case i < 0:
		ru.breaks("%s, which does not exist", s)
	}
	if running, stops := ru.l.memory.InFlight[podstate.StopContainer{ID: s.ID}.Key()]; stops {
		ru.breaks("%s beside %s", s, running)
	}
}

// hookNotRepeated checks that a stop runs the preStop hook exactly if it has not run.
func (ru *rules) hookNotRepeated(s podstate.StopContainer) {
	if s.HookRan != ru.preStopped[s.ID] {
		ru.breaks("%s: got a hook that ran: %t, want %t", s, s.HookRan, ru.preStopped[s.ID])
	}
	hook, runs := ru.l.memory.InFlight[podstate.PreStop{ID: s.ID}.Key()].(podstate.PreStop)
	if runs && ru.l.now.Before(hook.Deadline) && ru.l.now.Before(s.Deadline) {
		ru.breaks("%s while %s is in progress", s, hook)
	}
}
