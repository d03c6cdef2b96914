package spec

import "fmt"

// Reasons as the kubelet shows them in a container's waiting state, or in its sync errors.
const (
	ReasonCreateContainerConfig = "CreateContainerConfigError"
	ReasonConfigPodSandbox      = "ConfigPodSandboxError"
)

// Reason is an error its reader can act upon. Reason goes into the waiting state of the container, Message is for people.
type Reason struct {
	Reason  string
	Message string
}

func (r *Reason) Error() string { return r.Message }

// Warning is something the user should hear about in an event, though the pod can run. Reason is the event's reason.
type Warning struct {
	Reason  string
	Message string
}

func containerError(err error) error {
	return &Reason{Reason: ReasonCreateContainerConfig, Message: err.Error()}
}

func sandboxError(err error) error {
	return &Reason{Reason: ReasonConfigPodSandbox, Message: err.Error()}
}

func notFound(kind, name string) error { return fmt.Errorf("%s %q not found", kind, name) }
