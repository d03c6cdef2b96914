// Package cri is the client of the container runtime: k8s.io/cri-api runtime/v1 over gRPC on a unix socket.
//
// It owns the connection, one thin method for each call (with a deadline), the view of one pod (Snapshot), the view of
// the node (Relist) and the event stream (Watch).
//
// It never decides anything, never retries a call, caches nothing of the runtime's state (a Snapshot belongs to its
// caller), and never logs a request, because requests contain secrets.
//
// The agent, cri/images, cri/monitor and the kubelet API call it.
//
// A crash leaves nothing behind. Calls in flight may or may not have taken effect in the runtime; the caller finds out
// by a new Snapshot.
package cri
