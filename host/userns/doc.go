// Package userns sets IDs of the host aside for the pods that run in a user namespace of their own (spec.hostUsers: false,
// KEP-127): one range a pod, none twice, none with the IDs that the host itself uses.
//
// It owns the table of ranges and the file "userns" in each pod's directory, which has the kubelet's form, so that pods keep
// their range when the agent starts anew or a node changes hands. It never maps anything itself: the runtime does, by what
// the sandbox's and the containers' configurations say. The agent calls it. A crash leaves files behind: New reads them all
// before it gives anything away.
package userns
