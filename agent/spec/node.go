package spec

import (
	"path"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/poddir"
)

// Node holds the facts about the node and the settings that determine a pod's CRI configuration. This package only
// reads it.
type Node struct {
	// HostIPs are the node's addresses, at most one of each IP family, the primary one first.
	HostIPs []string
	// IPv6First: pods show their IPv6 address first, because --node-ip begins with one.
	IPv6First bool
	// PodLogsDir is the parent of the pods' log directories (KubeletConfiguration podLogsDir), normally /var/log/pods.
	PodLogsDir string
	// PodsDir is the parent of the pods' own directories: <root-dir>/pods.
	PodsDir string

	NodeDNS

	// SeccompDir is the directory of seccomp profiles of type Localhost: <root-dir>/seccomp.
	SeccompDir string
	// SeccompDefault makes RuntimeDefault the profile of containers without a profile of their own.
	SeccompDefault bool
	// SELinux: SELinux is enabled on this node.
	SELinux bool
	// SELinuxFileLabel is the label that the node's SELinux policy gives to the files of containers; empty if it has
	// none.
	SELinuxFileLabel string
	// SELinuxMount: volumes of every access mode are mounted with the label of their pods, not only ReadWriteOncePod
	// ones.
	SELinuxMount bool
	// ThermalThrottlePaths are the existing paths /sys/devices/system/cpu/cpu*/thermal_throttle. They are hidden from
	// containers.
	ThermalThrottlePaths []string

	Cgroups  Cgroups
	CgroupV2 bool
	// Capacity and Allocatable are those of the Node object; Capacity's memory is the machine's.
	Capacity    corev1.ResourceList
	Allocatable corev1.ResourceList
	// HugepageSizes are the sizes that the kernel supports, written as in the names of cgroup files: 2MB, 1GB.
	HugepageSizes []string
	Limits
	Managers Managers
	Swap     Swap
	// MemoryQoS is nil unless the feature gate MemoryQoS is on.
	MemoryQoS *MemoryQoS
}

// NodeDNS holds the settings of name resolution.
type NodeDNS struct {
	// ClusterDNS and ClusterDomain are the fields clusterDNS and clusterDomain of the KubeletConfiguration.
	ClusterDNS    []string
	ClusterDomain string
	// Resolv is the parsed content of the file that the field resolvConf of the KubeletConfiguration names.
	Resolv ResolvConf
	// NoResolvConf: resolvConf is the empty string. Pods with the host's DNS settings then get a resolver on the local
	// machine.
	NoResolvConf bool
}

// Limits holds the settings of the limits of containers and pods.
type Limits struct {
	// CPUCFSQuota enforces CPU limits. CPUCFSQuotaPeriod is the period; 0 means 100 ms.
	CPUCFSQuota       bool
	CPUCFSQuotaPeriod time.Duration
	// PodPidsLimit is the maximum number of processes of a pod; 0 or less means no limit.
	PodPidsLimit int64
	// SingleProcessOOMKill: when a container runs out of memory, the kernel kills one process and not all processes
	// of the container at once. It has an effect on cgroup v2 only.
	SingleProcessOOMKill bool
	// DefaultSysctls are set in all pods, by name (defaultPodSysctls, KEP-5996).
	DefaultSysctls map[string]string
}

// Swap holds the settings and facts that determine how much swap containers get.
type Swap struct {
	// Limited is true for memorySwap.swapBehavior LimitedSwap, false for NoSwap.
	Limited bool
	// Controller: the kernel has a swap controller for cgroups.
	Controller bool
	// Capacity is the node's swap in bytes.
	Capacity int64
}

// Managers holds the settings of the CPU and memory managers.
type Managers struct {
	// StaticCPU and StaticMemory: the policies are static. Then some containers have CPUs or memory for themselves.
	StaticCPU, StaticMemory bool
	// NoQuota: containers with CPUs for themselves have no CFS quota (feature gate DisableCPUQuotaWithExclusiveCPUs).
	NoQuota bool
	// HasCPUs reports whether a container has CPUs for itself. One that could have some may run without, if the policy was
	// turned on later. Nil: no container has any.
	HasCPUs func(*corev1.Pod, *corev1.Container) bool
}

// MemoryQoS holds the settings of memory protection and throttling on cgroup v2 (KEP-2570).
type MemoryQoS struct {
	// ThrottlingFactor is KubeletConfiguration memoryThrottlingFactor, above 0 and at most 1. 0 means no throttling.
	ThrottlingFactor float64
	// Tiered is true for memoryReservationPolicy TieredReservation.
	Tiered bool
	// PageSize is the page size of the machine in bytes.
	PageSize int64
}

// podDir returns the pod's own directory.
func (n *Node) podDir(uid types.UID) string { return path.Join(n.PodsDir, string(uid)) }

// PodAddress returns the address at which hooks reach the containers of a pod, which are on the network of the node or
// at the pod's own addresses podIPs. It is empty if the address is not known yet.
func (n *Node) PodAddress(onHost bool, podIPs []string) string {
	if onHost {
		podIPs = n.HostIPs
	}
	if len(podIPs) == 0 {
		return ""
	}
	return podIPs[0]
}

// hostsPath returns the path of the pod's /etc/hosts on the host. HostsFile returns its content.
func (n *Node) hostsPath(uid types.UID) string { return path.Join(n.podDir(uid), poddir.Hosts) }

// TerminationLogPath returns the path of the file that is mounted at the termination message path of one container
// instance. The file must exist, empty and with mode 0666, before the container is created. The attempt in its name
// distinguishes the instances.
func (n *Node) TerminationLogPath(uid types.UID, container string, attempt uint32) string {
	name := "termination-" + strconv.FormatUint(uint64(attempt), 10)
	return path.Join(n.podDir(uid), poddir.Containers, container, name)
}

// PodLogDir returns the directory of the pod's logs, which has one subdirectory for each container.
func (n *Node) PodLogDir(pod *corev1.Pod) string {
	return path.Join(n.PodLogsDir, poddir.Logs(pod.Namespace, pod.Name, pod.UID))
}

// LogPath returns the path of the log of one container instance, relative to the pod's log directory.
func LogPath(container string, attempt uint32) string {
	return path.Join(container, strconv.FormatUint(uint64(attempt), 10)+".log")
}

func (n *Node) memoryCapacity() int64 { return n.Capacity.Memory().Value() }
