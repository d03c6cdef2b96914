package numa

// Refusal is an error with which a pod is refused under a reason of its own. Other errors are unexpected.
type Refusal struct {
	// Reason and Message are the kubelet's.
	Reason, Message string
}

func (r *Refusal) Error() string { return r.Message }

// EmptyPool returns the refusal of a pod with resources of its own whose containers leave nothing to those of its
// containers that share the rest.
func EmptyPool(message string) *Refusal {
	return &Refusal{Reason: "EmptyPodSharedPoolError", Message: message}
}
