// Package dra prepares ResourceClaims on this node, by the drivers of Dynamic Resource Allocation
// (k8s.io/kubelet/pkg/apis/dra).
//
// It owns the registered drivers (Accept), the connections to them, and the record of which ResourceClaims are prepared
// for which pods: the file <root-dir>/dra_manager_state in the kubelet's format, written before a driver is called and
// again when it has answered. Drivers answer with names of CDI devices, which the runtime resolves.
//
// It never decides when a pod needs its ResourceClaims, never opens a device, and calls neither the runtime nor the API
// server: it reads ResourceClaims and deletes the ResourceSlices of drivers that are gone through the interface
// Config.API.
//
// The agent calls Prepare and Unprepare, each step in its own goroutine. Only one call at a time works on a
// ResourceClaim. When the agent gives up a step, the call to the driver goes on and holds up the next. A driver that
// hangs holds up only the pods that have a ResourceClaim on its devices.
//
// A crash leaves the file, which says only which ResourceClaims may be prepared. In the next process a pod with a
// sandbox keeps its devices, any other pod has its ResourceClaims prepared again (drivers must accept that), and
// ResourceClaims that no pod needs any more are unprepared.
package dra
