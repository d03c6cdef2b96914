package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Reasons that people see in container states and events; the words are the kubelet's.
const (
	ReasonContainerCreating     = "ContainerCreating"
	ReasonPodInitializing       = "PodInitializing"
	ReasonCrashLoopBackOff      = "CrashLoopBackOff"
	ReasonErrImagePull          = "ErrImagePull"
	ReasonImagePullBackOff      = "ImagePullBackOff"
	ReasonErrImageNeverPull     = "ErrImageNeverPull"
	ReasonInvalidImageName      = "InvalidImageName"
	ReasonCreateContainerConfig = "CreateContainerConfigError"
	ReasonCreateContainer       = "CreateContainerError"
	ReasonRunContainer          = "RunContainerError"
	ReasonPostStartHook         = "PostStartHookError"
	ReasonDeadlineExceeded      = "DeadlineExceeded"
	ReasonStatusUnknown         = "ContainerStatusUnknown"
)

// Plan is what follows from the facts.
type Plan struct {
	// Steps may all run now, side by side.
	Steps []Step
	// Cancel holds the keys of steps in flight that nobody wants any more.
	Cancel []Key
	// Probes are the containers to probe from now on.
	Probes []ProbeTarget
	// Status is the pod's status as it should be published.
	Status corev1.PodStatus
	// Waits says what the pod is waiting for, in the order in which it matters; empty when it waits for nothing.
	Waits []Wait
	// Wake is when to plan again though nothing has happened; zero for never.
	Wake time.Time
	// Released: nothing of the pod runs any more and all it held is given back, so the API object may go.
	Released bool
	// Reclaimed: the runtime keeps nothing of the ended pod any more, as Desired.Reclaim asks.
	Reclaimed bool
	// Done: not a trace is left, so the worker may end.
	Done bool
}

// ProbeTarget is a running container whose probes are due.
type ProbeTarget struct {
	ContainerID string
	// Container is its spec. Never modified.
	Container *corev1.Container
	StartedAt time.Time
	// Started and Ready are what the API last showed: what a probe finds counts only once it is known.
	Started bool
	Ready   bool
	// ReadinessOnly: the pod is ending, so that its startup and liveness no longer count.
	ReadinessOnly bool
}

// Wait is one thing a pod waits for.
type Wait struct {
	// For names it, for example "volume data" or "container app".
	For string
	// Why says what is going on, with the last error where there is one.
	Why string
	// Until is when it is tried again; zero where something else must happen first.
	Until time.Time
}

// Stopping tells whether the pod is to be torn down, for which the disk must be observed too.
func Stopping(d Desired, o Observed) bool { return look(d, o).stop != nil }

// Pod decides what the pod needs next.
func Pod(d Desired, o Observed) Plan {
	v := look(d, o)
	p := Plan{}
	v.decide(&p)
	v.collect(&p)
	p.Status = v.status(&p)
	return p
}
