// Package objects provides the API objects that pods refer to: ConfigMaps and Secrets, tokens of service accounts,
// services for environment variables, image pull secrets, service accounts for pulls, runtime classes,
// ClusterTrustBundles, certificates that signers issue to pods.
//
// It owns the copies in memory of the objects that pods use now, and the watches that keep them up to date: one for
// each ConfigMap or Secret that a volume shows, shared by all pods that show it, because the Node authorizer allows a
// node no more; one for all trust bundles; one for the node's PodCertificateRequests while any is pending. It never
// decides what a pod needs, never writes to disk, and never logs the content of a Secret, token or key. The workers in
// agent call it, and volumes through them. A crash leaves only PodCertificateRequests behind, which the controller
// manager removes.
//
// Two types have the same methods: Objects reads from the API server, Local from the manifests. A static pod gets its
// objects from Local and all others from Objects, so that a name never means two objects to one pod.
package objects
