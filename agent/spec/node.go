package spec

import (
	"path"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Node holds the facts of the node and of its configuration that shape a pod's CRI configuration. It is filled once and
// only read here.
type Node struct {
	Name string
	// HostIPs are the node's addresses, at most one of each family, the primary one first.
	HostIPs []string
	// PodLogsDir holds the pods' log directories (KubeletConfiguration podLogsDir), normally /var/log/pods.
	PodLogsDir string
	// PodsDir holds the pods' own directories: <root-dir>/pods.
	PodsDir string

	// ClusterDNS and ClusterDomain are the fields of KubeletConfiguration of that name.
	ClusterDNS    []string
	ClusterDomain string
	// Resolv is the content of the file KubeletConfiguration resolvConf names.
	Resolv ResolvConf
	// NoResolvConf tells that resolvConf is the empty string: pods with the host's DNS settings then get a resolver on
	// the local machine.
	NoResolvConf bool

	// SeccompDir is the directory seccomp profiles of type Localhost are relative to: <root-dir>/seccomp.
	SeccompDir string
	// SeccompDefault makes RuntimeDefault the profile of containers that name none.
	SeccompDefault bool
	// SELinux tells that SELinux is enabled on this node.
	SELinux bool
	// SELinuxFileLabel is the label that the node's policy gives to the files of containers, empty where it says none.
	SELinuxFileLabel string
	// SELinuxMount: volumes of every access mode are mounted with the label of their pods, not only ReadWriteOncePod ones.
	SELinuxMount bool
	// ThermalThrottlePaths are the existing /sys/devices/system/cpu/cpu*/thermal_throttle; they are hidden from containers.
	ThermalThrottlePaths []string

	Cgroups  Cgroups
	CgroupV2 bool
	// Capacity and Allocatable are those of the Node object; Capacity's memory is the machine's.
	Capacity    corev1.ResourceList
	Allocatable corev1.ResourceList
	// HugepageSizes are the sizes the kernel supports, written as cgroup files have them: 2MB, 1GB.
	HugepageSizes []string
	// CPUCFSQuota enforces CPU limits; CPUCFSQuotaPeriod is the period, 0 meaning 100 ms.
	CPUCFSQuota       bool
	CPUCFSQuotaPeriod time.Duration
	// PodPidsLimit bounds the processes of a pod; 0 or less means no bound.
	PodPidsLimit int64
	// SingleProcessOOMKill keeps the kernel from killing all processes of a container at once when memory runs out. It
	// matters on cgroup v2 only.
	SingleProcessOOMKill bool
	Swap                 Swap
	// MemoryQoS is nil unless the feature gate MemoryQoS is on.
	MemoryQoS *MemoryQoS
}

// Swap holds what decides about swap for containers.
type Swap struct {
	// Limited is true for memorySwap.swapBehavior LimitedSwap, false for NoSwap.
	Limited bool
	// Controller tells that the kernel has a swap controller for cgroups.
	Controller bool
	// Capacity is the node's swap in bytes.
	Capacity int64
}

// MemoryQoS holds the settings of memory protection and throttling on cgroup v2 (KEP-2570).
type MemoryQoS struct {
	// ThrottlingFactor is KubeletConfiguration memoryThrottlingFactor, from 0 to 1.
	ThrottlingFactor float64
	// Tiered is true for memoryReservationPolicy TieredReservation.
	Tiered bool
	// PageSize is the page size of the machine in bytes.
	PageSize int64
}

// PodDir is the pod's own directory.
func (n *Node) PodDir(uid types.UID) string { return path.Join(n.PodsDir, string(uid)) }

// HostsPath is where the pod's /etc/hosts lies on the host. HostsFile gives its content.
func (n *Node) HostsPath(uid types.UID) string { return path.Join(n.PodDir(uid), "etc-hosts") }

// TerminationLogPath is the file that is mounted at the termination message path of one container instance. It must
// exist, empty and with mode 0666, before the container is created. The attempt in its name keeps the instances apart.
func (n *Node) TerminationLogPath(uid types.UID, container string, attempt uint32) string {
	return path.Join(n.PodDir(uid), "containers", container, "termination-"+strconv.FormatUint(uint64(attempt), 10))
}

// PodLogDir is the directory of the pod's logs, which holds one directory for each container.
func (n *Node) PodLogDir(namespace, name string, uid types.UID) string {
	return path.Join(n.PodLogsDir, namespace+"_"+name+"_"+string(uid))
}

// LogPath is the log of one container instance, relative to the pod's log directory.
func LogPath(container string, attempt uint32) string {
	return path.Join(container, strconv.FormatUint(uint64(attempt), 10)+".log")
}

func (n *Node) memoryCapacity() int64 { return n.Capacity.Memory().Value() }
