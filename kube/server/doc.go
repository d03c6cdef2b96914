// Package server is the node's own API, which the API server, kubectl, Prometheus and people ask at port 10250.
//
// It owns the way in: TLS, who asks (client certificate, or bearer token by TokenReview), whether they may
// (SubjectAccessReview with the sub-resources of KEP-2862), limits, and the table of paths. What is not in the table is
// refused, and nothing is ever redirected. It answers for pods, logs and streams (exec, attach, port-forward) with what
// Agent gives, and passes the bytes of a stream between the client and the runtime's own streaming server. All else is
// mounted by cmd/nodelet: an http.Handler of another room, such as metrics or stats, in Config.Mounts with its path and
// the sub-resource of nodes that it takes to see it.
//
// It never decides about pods, keeps no pod in mind, reads no log file and never hands a credential on or writes one to
// the log. cmd/nodelet makes and runs it; agent stands behind Agent. A crash breaks the streams that are open and
// leaves nothing.
package server
