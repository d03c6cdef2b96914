// Package monitor polls the container runtime: its version, its status and its images. It also passes the node's pod
// CIDR to the runtime.
//
// It owns the runtime's last answers. It never decides what an answer means for the node or for a pod: the functions in
// Config do that. Calls that say whether the node is healthy share no goroutine with calls that may be slow, so a
// runtime that needs minutes to list its images stays Ready.
//
// cmd/nodelet runs one Monitor; anyone may ask it. A crash leaves nothing behind.
package monitor
