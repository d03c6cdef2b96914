// Package podstatus says what the API should show of one pod, as the kubelet would for the same facts. It
// is pure: no clock, no I/O, no context, no logger, no error.
//
//	func Build(s *podstate.State, progress Progress) corev1.PodStatus
//
// It owns phase, conditions, container states with their reasons and messages, addresses and resources, in
// the form in which the API server returns them. What the API shows already stays where the facts do not
// say otherwise, and nothing steps back: not the phase, not the start time, not the end of a container.
//
// It never decides what happens to the pod. Package plan calls it, once for each plan. It keeps nothing, so
// a crash leaves nothing behind.
package podstatus
