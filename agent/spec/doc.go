// Package spec computes the CRI configuration of a pod. Its input is the pod and facts about the node; its output is
// the configuration of the pod sandbox and of the containers.
//
// It is pure: no I/O, no context, no clock, no logger. The same input always gives the same output, so a container that
// is created again gets the same user, environment and mounts as the first time. The output matches that of the
// kubelet, including every label, so that either agent can take over the running pods of the other. Where this package
// differs, it is stricter: an unknown value in a security field is an error and never becomes a default.
//
// It owns names and formats that other packages rely on: CRI labels and annotations, log paths, the managed
// /etc/hosts, the container hash. It never resolves anything on disk or in the API: the caller passes volumes,
// sub-paths, image users and API objects as plain values.
//
// The agent calls it: to read labels when it observes the node, and to build CRI requests when it executes steps. The
// package keeps no state, so a crash leaves nothing behind.
package spec
