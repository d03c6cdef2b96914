// Package dra has the drivers of Dynamic Resource Allocation prepare resource claims on this node
// (k8s.io/kubelet/pkg/apis/dra).
//
// It owns the drivers that have registered (Accept), the connections to them, and which claims are prepared here for
// which pods: the file <root-dir>/dra_manager_state, in the kubelet's form, written before a driver is asked to prepare
// anything and again when it has. What drivers answer are names of CDI devices, which the runtime resolves.
//
// It never decides when a pod needs its claims, never opens a device, and knows neither the runtime nor the API server:
// claims are read, and the ResourceSlices of drivers that have gone are deleted, through what Config brings.
//
// The agent calls Prepare and Unprepare, each step in its own goroutine. One call at a time works on a claim; a driver
// that hangs holds up nobody but the pods that have a claim on its devices.
//
// A crash leaves the file. The next life takes what stands in it for noted and no more: a pod that has a sandbox goes
// on with its devices, any other has its claims prepared once more, which drivers must bear, and what no pod needs any
// more is unprepared.
package dra
