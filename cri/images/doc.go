// Package images pulls container images and removes them.
//
// It owns the pulls in progress. It parses image names, finds credentials in pull secrets, in the node's files and from
// credential providers (package provider), asks the runtime to pull, and records who may use a pulled image (package
// records). Requests for the same image with the same credentials, by pods of one namespace with the same annotations,
// share one pull. It removes images that no container uses when the disk fills up, or when they have been unused for
// too long.
//
// It never decides when to try a pull again (that is up to agent/plan), never removes an image that a container uses,
// and never logs or reports the content of a credential.
//
// The agent calls Puller.Ensure for a step; cmd/nodelet runs the Collector. A crash during a pull leaves its intent in
// package records. The runtime continues the pull or cancels it, and the next pull uses the layers that it has.
package images
