// Package spec writes the CRI configuration of a pod: pod and facts in, pod sandbox and container configuration out.
//
// It is pure: no I/O, no context, no clock, no logger. The same input always gives the same output, so a container that
// is created again gets the same user, the same environment and the same mounts as the first time. What the kubelet
// v1.36 would write is the measure, label for label, so that either agent can take over the pods of the other while they
// run. Where this package differs, it is stricter: a security field it does not understand is an error, never a default.
//
// It owns the names and layouts others rely on: CRI labels and annotations, log paths, cgroup names, the managed
// /etc/hosts, the container hash, quality of service. It never resolves anything on disk or in the API; volumes, sub-paths,
// image users and API objects come in as plain values.
//
// The agent calls it (observe for what labels tell, execute for what the runtime must be given). As nothing is kept here,
// a crash leaves nothing behind.
package spec
