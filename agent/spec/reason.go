package spec

import (
	"fmt"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Reason is an error for the pod's status and events. Reason is the machine-readable reason, as in the waiting state of
// the container; Message says what to correct in the pod.
type Reason struct {
	Reason  string
	Message string
}

func (r *Reason) Error() string { return r.Message }

// Warning is a problem to report in an event of the pod. The pod can run all the same. Reason is the event's reason.
type Warning struct {
	Reason  string
	Message string
}

func containerError(err error) error {
	return &Reason{Reason: podutil.ReasonCreateContainerConfig, Message: err.Error()}
}

func sandboxError(err error) error {
	return &Reason{Reason: podutil.ReasonConfigPodSandbox, Message: err.Error()}
}

func notFound(kind, name string) error { return fmt.Errorf("%s %q not found", kind, name) }
