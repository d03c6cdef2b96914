// Package podapi answers what the kubelet API asks about pods: lists, logs, exec, attach, port-forward, run and
// checkpoint.
//
// It owns the choice of the pod and the container instance that a request means, and the errors of these requests,
// which are the kubelet's. It never changes a pod and passes no bytes of a stream: it returns the URL at which the
// runtime serves it. kube/server calls it. It keeps no state; a crash may leave a checkpoint that is not complete.
package podapi
