// Package watch reads watches of the API server: one stream at a time (Target.Open), or a set of objects that is
// followed until its context ends (Target.Follow).
//
// It owns the protocol: framing, resource versions, bookmarks, expiry and the streamed initial state. It keeps no
// objects: what it reads goes to the caller, who decides. It never writes. kube/pods follows the pods of the node with
// it, kube/objects watches single ConfigMaps and Secrets. A crash leaves nothing behind.
//
// Why not client-go's Reflector: a node watches a hundred single objects, and a stream here is read by its owner,
// without the goroutines, the buffer and the store that a Reflector brings for each. On a real API server a watched
// ConfigMap of 1 KiB costs 22 to 27 KiB and 2 goroutines at rest (the connection's share included) against 26 to 38
// KiB and 4 goroutines: see BenchmarkIdle in kube/objects. It also resumes after a lost connection without a list,
// reports an outage once, and reads the whole state after one.
package watch
