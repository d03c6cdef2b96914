// Package pods determines which pods the node should run: those that are bound to it in the API server, and static
// pods from manifest files and a URL.
//
// It owns the sources, their merge into one full Set, and the mirror pods that show static pods in the API server. It
// never decides about a pod, keeps no old state for comparison, and never writes to disk. The supervisor in agent
// receives the Sets, and finds with Set.Mirror the mirror pod that gets the status of a static pod. The manager of pod
// networks finds with Set.Shown what it annotates. cmd/nodelet starts the sources; `nodelet check` reads the manifests
// once, and reports what is wrong with them.
//
// A crash leaves nothing behind: the next start reads the sources again, and compares the mirror pods of the API server
// with the static pods.
package pods
