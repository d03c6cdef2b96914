// Package cri speaks to the container runtime: k8s.io/cri-api runtime/v1 over gRPC on a unix socket.
//
// It owns the connection, one thin method for each call, with a deadline and a place in the table of calls in flight,
// the view of one pod (Snapshot), the view of the node (Relist) and the event stream (Watch).
//
// It never decides anything, never retries a call, keeps no cache of the runtime's state (a Snapshot belongs to its
// caller) and never logs a request, since requests carry secrets.
//
// The agent calls it, and, for their own calls, images, probes and kube/server.
//
// A crash leaves nothing of its own behind. Calls that were under way may or may not have taken effect in the runtime:
// the caller looks again (Snapshot) and finds out.
package cri
