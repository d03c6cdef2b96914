// Package server serves the node's own API at port 10250 for the API server, kubectl, Prometheus and users.
//
// It owns TLS, authentication (client certificates, and bearer tokens by TokenReview), authorization
// (SubjectAccessReview with the subresources of KEP-2862), limits, and the table of paths. A path that is not in the
// table is refused, and nothing is redirected. For pods, logs and streams (exec, attach, port-forward) it asks Agent,
// and copies the bytes of a stream between the client and the runtime's streaming server. WebSockets of a kind that
// runtimes do not serve are translated to SPDY. Everything else is an http.Handler of another package, such as metrics,
// in Config.Mounts with its path and the subresource of nodes that a caller needs.
//
// It never decides about pods, keeps no pod, reads no log file, and never forwards or logs a credential. cmd/nodelet
// creates and runs it; agent/podapi implements Agent. A crash breaks open streams and leaves nothing behind.
package server
