// Package agent joins the pure core and the hands: it is the only place that sees both facts and acts.
//
// The supervisor keeps one worker for each pod that the sources or the runtime know. A worker takes a turn for each
// thing that happens: it observes (observe.go), lets plan decide, tells the other rooms (tell.go) and sends the steps
// on their way, one goroutine each (execute.go and the step files). Nothing here decides what a pod needs; that is
// agent/plan's.
//
// It owns the set of workers and, in each worker, all that is remembered of a pod; there are no locks. cmd/nodelet
// wires and runs it. A crash leaves pods running and steps half done; the next start looks at the runtime and the
// disk, plans, and goes on from there.
package agent
