// Package fake is a container runtime in memory for tests. It serves the real protocol, k8s.io/cri-api runtime/v1 over
// gRPC, through an in-process pipe (Connect, which works inside a testing/synctest bubble) or a unix socket (Listen).
//
// It owns its own pods, containers, images and a scripted registry, and follows containerd where runtimes differ: names
// are reserved per pod and attempt, a second stop with a shorter grace overtakes the first, a call whose client has
// gone gives up. Faults make any call fail, hang, take its time or lose its answer; Crash, KillSandbox and
// ExitContainer are the blows from outside.
//
// It runs no process, keeps nothing on disk and is no part of the product. Time is the standard library's, so a
// synctest bubble moves it.
package fake
