// Package pods knows which pods the node should run: those which the API server bound to it, and static pods from manifest
// files and a URL.
//
// It owns the sources, their merge into one full Set, and the mirror pods that show static pods in the API server. It never
// decides about a pod, keeps no old state for comparison, and never writes to disk. The supervisor in agent receives the
// Sets; kube/status finds with Set.Mirror where a static pod's status belongs. A crash leaves nothing behind: the next start
// reads the sources again, and mirror pods are compared with what is there.
package pods
