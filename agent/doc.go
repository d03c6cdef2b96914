// Package agent joins the pure core to what acts on the node: it is the only package that sees both facts and
// effects.
//
// The supervisor keeps one worker for each pod that the sources or the runtime know. A worker syncs its pod whenever
// something happens: it observes (observe.go), lets plan decide, publishes the result (publish.go) and starts the
// steps, one goroutine each (execute.go and the step files). Nothing here decides what a pod needs; agent/plan does,
// and agent/admission which pods may run.
//
// It owns the set of workers and, in each worker, all that is remembered of a pod; there are no locks. cmd/nodelet
// wires and runs it. A crash leaves pods running and steps half done; the next start looks at the runtime and the
// disk, plans, and continues from there.
package agent
