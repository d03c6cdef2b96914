// Package images gets container images onto the node: it understands image names, finds the credentials for them in pull
// secrets and in the node's files, and asks the runtime to pull, each image once at a time however many pods wait for it.
//
// It never decides when to pull or to try again (pull policy and back-off are agent/plan's), never removes an image, and
// never logs or reports what a credential holds.
//
// The agent calls it for a step. A crash leaves nothing of its own; the runtime goes on with a pull or gives it up as it
// likes, and the next pull of the same image finds the layers that are there.
package images
