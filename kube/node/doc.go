// Package node makes the machine a node: it registers the Node object, keeps its status and its lease up to date, and
// holds the newest version of the object for the packages that decide about pods.
//
// It owns the facts of the machine (Machine), the part of them that pods may use (Allocatable), the conditions
// MemoryPressure, DiskPressure, PIDPressure and Ready, and the lease in kube-node-lease. It never reads the runtime,
// the images or the pressure itself: those come through RuntimeAnswered, SetImages and SetPressure. cmd/nodelet creates
// the Reporter and calls Run.
//
// Heartbeats (lease and status) use a connection of their own with their own deadlines, so that a blocked watch or a
// busy client cannot make the node look dead. After several failures that connection is replaced.
//
// A crash leaves the Node object and the lease as they were. The next start continues with them: a node that was Ready
// stays Ready until the runtime has answered, so that a restart of the agent does not change the node's status.
package node
