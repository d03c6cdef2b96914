// Package agent connects the pure packages, which decide, with those that act on the node.
//
// The supervisor keeps one worker for each pod that the sources or the runtime know. A worker syncs its pod whenever
// something happens: it observes (observe.go), lets plan decide, publishes the result (publish.go) and starts the
// steps, one goroutine each; package execute runs them. Nothing here decides what a pod needs; agent/plan does,
// and agent/admission which pods may run.
//
// It owns the set of workers and, in each worker, the state of a pod, which needs no lock. cmd/nodelet creates the
// Supervisor and calls Run. A crash leaves pods running and steps half done; the next start observes the runtime and
// the disk, plans, and continues from there.
package agent
