// Package images makes container images present on the node. It parses image names, finds credentials in pull secrets,
// in the node's files and from credential providers (package provider), asks the runtime to pull, and records who may
// use a pulled image (package records). Requests for the same image with the same credentials share one pull. It also
// removes images that no container uses, when the disk fills up or they have been unused for too long.
//
// It never decides when to try a pull again (that is up to agent/plan), never removes an image that a container uses,
// and never logs or reports the content of a credential.
//
// The agent calls Puller.Ensure for a step; cmd/nodelet runs the Collector. A crash during a pull leaves its intent in
// package records; the runtime continues the pull or cancels it, and the next pull finds the layers that are there.
package images
