// Package podstate derives the state of one pod from facts. It is pure: no clock, no I/O, no context, no logger, no
// error.
//
//	Desired    what the sources of pods ask for
//	Observed   what is on this node now, and through a Recall what the agent remembers
//	State      what follows from both: the current sandbox, the newest instance of each container, whether it restarts
//	           and when, whether the pod is initialized, must stop, resets or resizes
//
// Packages plan and podstatus query a State and decide what to do and what to report. The worker of the pod fills
// Desired and Observed. It also owns the Memory, and only the worker changes it, when steps begin and end. This package
// defines Step and Key because the steps in flight are facts too.
//
// The package never decides what to do next. It stores nothing on disk, so a crash leaves nothing behind. A crash loses
// the Memory: the agent then repeats idempotent work, but its decisions stay correct.
package podstate
