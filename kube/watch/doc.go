// Package watch reads watches of the API server: one stream at a time (Target.Open), or a set of objects followed for ever
// (Target.Follow).
//
// It owns the protocol: framing, resource versions, bookmarks, expiry, the streamed initial state, back-off. It keeps no
// objects; what it reads goes to the caller, who decides. It never writes. kube/pods follows the pods of the node with it,
// kube/objects watches single ConfigMaps and Secrets. A crash leaves nothing behind.
//
// Why not client-go's Reflector: a node watches hundreds of single objects. A stream here is read by its owner, without the
// goroutines, the second buffer and the store a Reflector brings for each; BenchmarkIdle has the figures.
package watch
