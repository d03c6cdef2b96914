// Package objects hands out the API objects that pods refer to: ConfigMaps and Secrets, tokens of service accounts, services
// for environment variables, image pull secrets, runtime classes, trust bundles of the cluster, certificates that signers issue
// to pods.
//
// It owns the copies in memory of those which pods use now, and the watches that keep them fresh: one for each ConfigMap or
// Secret that a volume shows, shared by all pods that show it, since that is all the Node authorizer grants a node; one for all
// trust bundles; one for the node's requests for certificates while any has no answer. It never decides what a pod needs, never
// writes to disk, and never logs what a Secret, token or key holds. The workers in agent call it, and volumes through them. A
// crash leaves nothing behind but requests for certificates, which the controller manager removes.
//
// Two types give the same: Objects, from the API server, and Local, from the manifests. A static pod gets its objects from
// Local and all others from Objects, so that one name never means two things to one pod.
package objects
