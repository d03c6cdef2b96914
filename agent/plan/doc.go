// Package plan decides what a pod needs next. It is pure: no clock, no I/O, no context, no logger, no error.
//
// One function is its heart:
//
//	func Pod(Desired, Observed) Plan
//
// Desired is what the sources of pods want. Observed is what is true on this node now, and what the agent remembers. Plan
// holds the steps that may run now, all of them in parallel. A plan never carries an order: order follows from facts, so
// after a crash, a lost answer or half-done work the way on is to look again and plan again. Attempt numbers come from
// facts too, which makes them the idempotency key: a repeated create collides with itself in the runtime.
//
// It owns the rules: which sandbox is the current one, init order, restart and back-off, how a pod stops, what its status
// says. It never acts, and never sees a hand. The agent's worker calls it, once for each event of the pod; so do explain
// and the simulation. A crash leaves nothing behind, for nothing is kept here: Memory belongs to the worker.
package plan
