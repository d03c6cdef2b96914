package podstate

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Observed is what is true about one pod on this node now. It is filled in one place (agent/observe.go) and
// is never modified.
type Observed struct {
	Now time.Time
	// Sandboxes and Containers are all instances that the runtime has, in any order.
	Sandboxes  []Sandbox
	Containers []Container
	// VolumesOnDisk are the names of the volumes that have a directory below the pod's. Filled when the pod
	// is to be torn down; nil otherwise.
	VolumesOnDisk []string
	// DirOnDisk and CgroupExists: the pod's directory and cgroup still exist. Filled like VolumesOnDisk.
	DirOnDisk    bool
	CgroupExists bool
	// ResetNoted: the pod's directory has the marker file of a reset (RestartAllContainers). Filled for a pod
	// whose restart rules can ask for one.
	ResetNoted bool
	// ClaimsHeld: resource claims are prepared for the pod, or may be.
	ClaimsHeld bool
	// Verdicts are the newest probe results by container ID.
	Verdicts map[string]Verdict
	// NetworkProblem is what the network plugins find wrong with the pod's network; empty for nothing.
	NetworkProblem string
	// Memory is what this run of the agent remembers of the pod.
	Memory Recall
	Node   Node
}

// Node is what decisions need to know of the node.
type Node struct {
	// RuntimeName is the name of the runtime (CRI VersionResponse.runtime_name), such as containerd;
	// container IDs in statuses begin with it.
	RuntimeName string
	// RecursiveReadOnly: the pod's runtime handler can make read-only mounts recursive.
	RecursiveReadOnly bool
	// HostIPs are the node's addresses, the primary one first.
	HostIPs []string
	// BackoffFirst is the first crash-loop back-off; zero means the kubelet's 10 s.
	BackoffFirst time.Duration
	// BackoffMax bounds the crash-loop back-off (KubeletConfiguration
	// crashLoopBackOff.maxContainerRestartPeriod); zero means DefaultBackoffMax.
	BackoffMax time.Duration
}

// Sandbox is one instance of the pod's sandbox.
type Sandbox struct {
	ID string
	// Attempt numbers the instances of one pod from 0.
	Attempt   uint32
	Ready     bool
	CreatedAt time.Time
	// IPs are the pod's addresses, the primary one first; empty on the host's network.
	IPs []string
	// Handler is the runtime handler it was created with; empty for the default one.
	Handler string
}

// ContainerState is the CRI's ContainerState.
type ContainerState int

const (
	ContainerCreated ContainerState = iota
	ContainerRunning
	ContainerExited
	// ContainerUnknown: the runtime lost track of the container; it is stopped before anything else is done with it.
	ContainerUnknown
)

// Container is one instance of one of the pod's containers.
type Container struct {
	ID        string
	Name      string
	SandboxID string
	// Attempt numbers the instances of one container from 0; it is the restart count.
	Attempt uint32
	State   ContainerState
	// CreatedAt, StartedAt and FinishedAt are the runtime's; zero where it has not come to that.
	CreatedAt  time.Time
	StartedAt  time.Time
	FinishedAt time.Time
	// EndedAt is FinishedAt as far as the agent's own monotonic clock can tell: back-offs count from it, so
	// that a jump of the wall clock neither skips nor stretches them. Zero stands for FinishedAt.
	EndedAt  time.Time
	ExitCode int32
	// Signal is the signal that ended the container, 0 where unknown.
	Signal int32
	// Reason and Message are the runtime's for an exited container; Message is the termination message where the
	// container left one.
	Reason  string
	Message string
	// Image is the image's name as the runtime has it, ImageID the reference it resolved to (CRI
	// ContainerStatus.image and image_ref).
	Image   string
	ImageID string
	// User is the user that the runtime started it with; nil where the runtime does not tell.
	User *corev1.ContainerUser
	// Size is what the runtime says of its resources; nil where it does not tell.
	Size *Size
	// Made are the resources it was created with, CPU and memory alone; nil where that is not known.
	Made *corev1.ResourceRequirements
	// Hash is the hash of the container spec it was created from; empty where the label is missing or not
	// understood, which never causes a restart.
	Hash string
}

// ProbeResult is the newest outcome of one probe.
type ProbeResult int

const (
	ProbeUnknown ProbeResult = iota
	ProbeSuccess
	ProbeFailure
)

// Verdict is what the probes say of one running container.
type Verdict struct {
	Startup   ProbeResult
	Liveness  ProbeResult
	Readiness ProbeResult
}
