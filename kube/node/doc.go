// Package node makes the machine a node: it registers the Node object, keeps its status and its lease fresh, and
// holds the newest version of the object for whoever decides about pods.
//
// It owns the facts of the machine (Machine), what of them pods may use (Allocatable), the conditions MemoryPressure,
// DiskPressure, PIDPressure and Ready, and the lease in kube-node-lease. It never looks at the runtime, the images or
// the pressure itself: those come through SetRuntime, Config.Images and SetPressure. cmd/nodelet wires it and runs
// Run.
//
// Heartbeats (lease and status) go over a connection of their own with their own deadlines, so that a stuck watch or
// a busy client cannot make the node look dead; after failures that connection is built anew.
//
// A crash leaves the Node object and the lease as they were. The next start takes them over: a node that was Ready
// stays Ready while the runtime is asked, so that a restart of the agent is invisible.
package node
