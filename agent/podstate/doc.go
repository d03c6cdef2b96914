// Package podstate says what is true of one pod. It is pure: no clock, no I/O, no context, no logger, no error.
//
//	Desired    what the sources of pods ask for
//	Observed   what is on this node now, and through a Recall what the agent remembers
//	State      what follows from both: the current sandbox, the newest instance of each container, whether it restarts
//	           and when, whether the pod is initialized, must stop, resets or resizes
//
// Packages plan and podstatus ask a State what is true and decide what to do and what to report. The worker
// of the pod fills Desired and Observed and owns the Memory; it alone changes it, as steps begin and end.
// Step and Key are here since the steps in flight are facts too.
//
// It never decides what to do next and keeps nothing, so a crash leaves nothing behind. Memory is lost in a
// crash: that costs repeated idempotent work, never correctness.
package podstate
