// Package userns allocates IDs of the host to the pods that run in a user namespace of their own (spec.hostUsers:
// false, KEP-127): one range per pod. Ranges do not overlap each other or the IDs that the host itself uses.
//
// It owns the table of ranges and the file "userns" in each pod's directory. The file has the kubelet's format, so
// that pods keep their range when the agent restarts or the node changes between the kubelet and nodelet. The package
// never maps an ID itself: the runtime does, as the configurations of the sandbox and the containers say. The agent
// calls it. A crash leaves files behind: New reads them all before it allocates a range.
package userns
