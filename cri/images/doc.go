// Package images gets container images onto the node: it understands image names, finds the credentials for them in pull
// secrets, in the node's files and by credential providers (package provider), and asks the runtime to pull, each image once at a time however many pods wait for it. It
// also takes images away that no container uses, when the disk fills up or they have lain there for too long.
//
// It never decides when to pull or to try again (pull policy and back-off are agent/plan's), never removes an image
// that a container uses, and never logs or reports what a credential holds.
//
// The agent calls it for a step; the collection goes its own pace. A crash leaves nothing of its own; the runtime goes on with a pull or gives it up as it
// likes, and the next pull of the same image finds the layers that are there.
package images
