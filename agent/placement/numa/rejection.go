package numa

import "github.com/nodelet/nodelet/agent/podstate"

// EmptyPool returns the rejection of a pod with resources of its own whose containers leave nothing to those of its
// containers that share the rest.
func EmptyPool(message string) *podstate.Rejection {
	return &podstate.Rejection{Reason: "EmptyPodSharedPoolError", Message: message}
}
