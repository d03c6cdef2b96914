package podstate

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Observed holds the current facts about one pod on this node. Only agent/observe.go fills it, and it is never modified
// afterwards.
type Observed struct {
	Now time.Time
	// Sandboxes are all sandboxes that the runtime has, newest first. Containers are all containers, in any order.
	Sandboxes  []Sandbox
	Containers []Container
	// Logged is how many attempts of its containers a static pod had logs of when the agent began with it, or when its
	// mirror pod came, by name. The runtime may have lost the instances, and a status may not show them. Nil for other
	// pods.
	Logged map[string]uint32
	// VolumesOnDisk are the names of the volumes that have a directory below the pod's directory: those of the pod's
	// volumes if this run of the agent has mounted them, else those of the directories. It is filled only if the pod
	// must end and no container of it is alive, and nil otherwise.
	VolumesOnDisk []string
	// DirOnDisk: the pod has a directory, or one for its logs. CgroupExists: it has a cgroup. Filled like VolumesOnDisk.
	DirOnDisk    bool
	CgroupExists bool
	// ResetMark is the content of the marker file of a reset (RestartAllContainers) in the pod's directory. It is filled
	// for a pod whose restart rules can request a reset.
	ResetMark ResetMark
	// ClaimsHeld: resource claims are prepared for the pod, or may be.
	ClaimsHeld bool
	// Probes are the newest probe results by container ID.
	Probes map[string]ProbeResults
	// DeviceHealth is the health of the devices of containers, by name. An empty health is not known yet in this run of
	// the agent.
	DeviceHealth map[string][]corev1.ResourceStatus
	// NetworkProblem is the problem that the network plugins report for the pod's network; empty if there is none.
	NetworkProblem string
	// StopBegun: this run of the agent has begun to end the pod for the reason of its stop.
	StopBegun bool
	// Memory is what this run of the agent remembers of the pod.
	Memory Recall
	Node   Node
}

// Node holds the facts about the node that decisions depend on.
type Node struct {
	// RuntimeName is the name of the runtime (CRI VersionResponse.runtime_name), such as containerd;
	// container IDs in statuses begin with it.
	RuntimeName string
	// RecursiveReadOnly: the pod's runtime handler supports recursive read-only mounts. Nil: its handler is not known yet.
	RecursiveReadOnly *bool
	// HostIPs are the node's addresses, at most one of each IP family, the primary one first.
	HostIPs []string
	// IPv6First: pods show their IPv6 address first.
	IPv6First bool
	// BackoffFirst and BackoffMax are the first and the longest crash-loop back-off.
	BackoffFirst, BackoffMax time.Duration
}

// Sandbox is one instance of the pod's sandbox.
type Sandbox struct {
	ID string
	// Attempt numbers the instances of one pod from 0.
	Attempt uint32
	Ready   bool
	Network Network
	// IPs are the pod's addresses, the primary one first; empty on the host network.
	IPs []string
	// Handler is the runtime handler it was created with; empty for the default one.
	Handler string
}

// Network says whose network a sandbox has.
type Network uint8

const (
	// NetworkUnknown: the runtime does not say.
	NetworkUnknown Network = iota
	NetworkPod
	NetworkHost
)

// OnHost reports whether the sandbox of pod is on the network of the node, as the spec says if the runtime does not.
func (b *Sandbox) OnHost(pod *corev1.Pod) bool {
	if b == nil || b.Network == NetworkUnknown {
		return pod.Spec.HostNetwork
	}
	return b.Network == NetworkHost
}

// Problem says in the kubelet's words why no container of the pod can run in the sandbox; empty if they can.
func (b *Sandbox) Problem(pod *corev1.Pod) string {
	switch {
	case !b.Ready:
		return "pod sandbox is not ready"
	case b.OnHost(pod) != pod.Spec.HostNetwork:
		return "network namespace mode changed and sandbox needs to be recreated"
	case !pod.Spec.HostNetwork && len(b.IPs) == 0:
		return "pod sandbox has no IP address"
	}
	return ""
}

// ContainerState is the CRI's ContainerState.
type ContainerState int

const (
	ContainerCreated ContainerState = iota
	ContainerRunning
	ContainerExited
	// ContainerUnknown: the runtime does not know the state of the container. The agent stops it before it does
	// anything else with it, but leaves an ephemeral one alone.
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
	// StartedAt and FinishedAt are the times that the runtime reports; zero if that has not happened yet.
	StartedAt  time.Time
	FinishedAt time.Time
	// EndedAt is FinishedAt measured with the agent's own monotonic clock. Back-offs start at it, so that a jump of
	// the wall clock neither skips nor extends them. Zero for an instance that the runtime has lost.
	EndedAt  time.Time
	ExitCode int32
	// Signal is the signal that ended the container; 0 if it is not known.
	Signal int32
	// Reason and Message are those of the runtime for an exited container. If the container wrote a termination
	// message, Message is that.
	Reason  string
	Message string
	// Image is the image's name and ImageID its reference, as the runtime reports them (CRI ContainerStatus.image and
	// image_ref). Unlike in the kubelet, the name that the pod gives comes first if the runtime reports it: containerd
	// does so for an image without a tag, beside the ID of the image.
	Image   string
	ImageID string
	// User is the user of its process; nil if the runtime does not report it.
	User *corev1.ContainerUser
	// Size holds the resources that the runtime reports; nil if it does not report them.
	Size *Size
	// Made are the CPU and memory with which it was created; nil if that is not known.
	Made *corev1.ResourceRequirements
	// Hash is the hash of the container spec from which it was created; empty if the annotation is missing or not
	// valid, which never causes a restart.
	Hash string
	// PreStop: it was created with a preStop hook, which also runs if the spec no longer has the container.
	PreStop bool
}

// ProbeResult is the newest outcome of one probe.
type ProbeResult int

const (
	ProbeUnknown ProbeResult = iota
	ProbeSuccess
	ProbeFailure
)

// ProbeResults holds the newest probe results of one running container.
type ProbeResults struct {
	Startup   ProbeResult
	Liveness  ProbeResult
	Readiness ProbeResult
	// Failing is what the startup or readiness probe that has not succeeded last said. No decision depends on it.
	Failing string
}
