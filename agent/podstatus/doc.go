// Package podstatus computes the status of one pod, equal to the kubelet's for the same facts. It is pure: no clock, no
// I/O, no context, no logger, no error.
//
//	func Build(s *podstate.State, progress Progress) *corev1.PodStatus
//
// It owns phase, conditions, container states with their reasons and messages, addresses and resources, in the form in
// which the API server returns them. It keeps the values of the reported status unless the facts require others. The
// phase, the start time and the end of a container never go back to an earlier value.
//
// It never decides what happens to the pod. Package plan calls it, once for each plan. It keeps no state, so a crash
// leaves nothing behind.
package podstatus
