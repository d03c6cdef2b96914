// Package execute runs the steps of plans: it does to the system what one step says, and returns the outcome.
//
// It owns how a step becomes calls of the backends, the events about it, and the limits that keep many pods which start
// or stop at once from slowing each other down. For each kind of work it has one type: sandboxes, containers, images,
// volumes, hooks, sizes, pod directories. It never decides which step is due; agent/plan does. It retries nothing.
//
// The worker of a pod calls it, each step in a goroutine of its own. What later steps need of earlier ones is in a
// Results, which the worker owns. A crash leaves a step half done; the next run of the agent observes what it has done,
// and a plan repeats it.
package execute
