package agent

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/admission"
	"github.com/nodelet/nodelet/agent/allocation"
	"github.com/nodelet/nodelet/agent/execute"
	"github.com/nodelet/nodelet/agent/placement/numa"
	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/host/machine"
	"github.com/nodelet/nodelet/internal/trace"
)

// Backends are the parts of the agent that the supervisor and the workers call. Each method is described where it is
// implemented. All but Tracer are required.
type Backends struct {
	Runtime Runtime
	// Steps runs the steps of plans.
	Steps         *execute.Executor
	PodFiles      PodFiles
	Logs          Logs
	Volumes       Volumes
	Cgroups       Cgroups
	Devices       Devices
	Placement     Placement
	AllocatedPods allocation.AllocatedPods
	Claims        Claims
	Probes        Probes
	// Objects returns the objects that a pod may refer to: those of the API server, or of the manifests for a static pod.
	Objects func(pod *corev1.Pod) Objects
	Status  Status
	Events  execute.Events
	Metrics Metrics
	// Tracer samples what is done for pods; nil for no traces.
	Tracer *trace.Tracer
}

// Runtime shows what the container runtime has: *cri.Client.
type Runtime interface {
	Snapshot(ctx context.Context, pod types.UID, last *cri.Snapshot) (*cri.Snapshot, error)
	Update(ctx context.Context, last *cri.Snapshot, changed []cri.Instance) (*cri.Snapshot, error)
	Relist(ctx context.Context) ([]cri.PodSummary, error)
	Watch(ctx context.Context, onEnd func(types.UID, cri.Instance), onConnect func()) error
	Connections() uint64
}

// PodFiles is the directories of the pods: *podfs.FS.
type PodFiles interface {
	allocation.Files
	HasPodDir(pod types.UID) (bool, error)
	NotePodFile(pod types.UID, name string, content []byte) error
	ResetMark(pod types.UID) (mark string, marked bool, err error)
}

// Logs shows which pods have a log directory, and how many attempts of a container it counts: *logs.Tree.
type Logs interface {
	Has(pod *metav1.ObjectMeta) (bool, error)
	Attempts(pod *metav1.ObjectMeta, container string) (uint32, error)
	Pods() ([]types.UID, error)
}

// Volumes lists the pods that have a directory or a volume: *volumes.Manager.
type Volumes interface {
	Pods() ([]types.UID, error)
}

// Cgroups shows which pods have a cgroup, and sets what the classes get from what their pods request:
// *podcgroups.Cgroups, or podcgroups.None.
type Cgroups interface {
	Exists(pod *corev1.Pod) (bool, error)
	Pods() ([]types.UID, error)
	SetDemand(d podstate.Demand) error
}

// Devices reserves the devices of device plugins, and knows their health: *devices.Devices.
type Devices interface {
	ReleaseEnded(ended func(types.UID) bool)
	Reserve(pod *corev1.Pod, near func(container string, node int64) bool) (
		allocate func(context.Context) error, err error)
	Rejection(pod *corev1.Pod) error
	Resume(pod *corev1.Pod) (wait func(context.Context) error)
	Release(pod types.UID)
	Health(pod types.UID) map[string][]corev1.ResourceStatus
}

// Placement gives pods CPUs and memory of their own: *placement.Manager.
type Placement interface {
	ReleaseEnded(ended func(types.UID) bool)
	Admit(pod *corev1.Pod) (record func() error, affinity map[string]numa.Mask, rejection *podstate.Rejection)
	Resume(pod *corev1.Pod)
	Rejection(pod *corev1.Pod) *podstate.Rejection
	Fits(pod *corev1.Pod) bool
	Release(pod types.UID)
}

// Claims shows which pods have prepared resource claims, and the health of their devices: *dra.DRA.
type Claims interface {
	Holds(pod types.UID) bool
	Pods() []types.UID
	Health(pod *corev1.Pod) map[string][]corev1.ResourceStatus
}

// Probes runs the probes of pods: *podprobes.Probes.
type Probes interface {
	Set(pod *corev1.Pod, address string, targets []plan.ProbeTarget)
	Results(pod types.UID) map[string]podstate.ProbeResults
}

// Objects keeps the API objects that pods refer to: *objects.Objects with an API server, else *objects.Local.
type Objects interface {
	UsePod(pod *corev1.Pod, lacking bool)
	Drop(pod types.UID)
	// Prime reads, in the background, what a running pod needs to restart a container or its sandbox.
	Prime(pod *corev1.Pod)
}

// Status publishes the statuses of pods: *status.Publisher with an API server, else status.None.
type Status interface {
	Set(pod *corev1.Pod, status corev1.PodStatus)
	SetGone(pod *corev1.Pod, status corev1.PodStatus)
	Forget(pod types.UID)
}

// Config is what a Supervisor needs: its backends, facts of the node, and what others decide. All but Watchers, Clock
// and Uptime are required.
type Config struct {
	Backends
	// Node returns the node's facts as spec needs them.
	Node func() *spec.Node
	// NodeSeen is closed when the Node object is known: before that no pod of the API server is admitted.
	NodeSeen <-chan struct{}
	// RefreshNode reads the Node object again. It may block for some seconds.
	RefreshNode func(ctx context.Context)
	// Waiting returns an error as long as the supervisor cannot run, because the container runtime has not answered yet:
	// it is the answer to those who ask about pods.
	Waiting func() error
	// RuntimeName returns the runtime's own name, for example containerd; it prefixes container IDs in statuses. It is
	// known before the supervisor runs, and does not change while the runtime is unavailable.
	RuntimeName func() string
	// DeviceHealth: statuses show the health of devices (ResourceHealthStatus). The caller of HealthChanged notifies the
	// supervisor about a change.
	DeviceHealth bool
	// NetworkProblem returns what is wrong with the network of a pod, or "". The caller of ProbeChanged notifies the
	// supervisor about a change.
	NetworkProblem func(pod types.UID) string
	// Rejection returns why the node takes no such pod now, whatever it requests; nil if it does. While it returns a
	// reason, no resize is allocated.
	Rejection func(pod *corev1.Pod) *podstate.Rejection
	// Admit decides whether a pod that is new on the node can run together with the pods already admitted.
	Admit func(pod *corev1.Pod, others []*corev1.Pod) admission.Decision
	// BegunEviction returns the eviction of a pod that an earlier run of the agent has begun, or nil.
	BegunEviction func(pod *corev1.Pod) *Eviction
	// PodGone is called when nothing of a pod is left on the node, and after the first list of the runtime's pods.
	PodGone func()
	// RuntimeListed is called each time that the runtime has listed its pods.
	RuntimeListed func()
	// Watchers hear about changes of pods. Nil: there are none.
	Watchers Watchers
	// Clock returns the time of the wall clock, without a monotonic reading. Nil: that of the machine.
	Clock func() time.Time
	// Uptime returns how long the machine has run, by a clock that cannot be set. Nil: that of the machine.
	Uptime func() time.Duration
	// BackoffFirst and BackoffMax are the first and the longest crash-loop back-off.
	BackoffFirst, BackoffMax time.Duration
	Log                      *slog.Logger
}

// complete returns c with implementations that do nothing in place of what the node does not have.
func (c Config) complete() *Config {
	if c.Watchers == nil {
		c.Watchers = noWatchers{}
	}
	if c.Clock == nil {
		c.Clock = func() time.Time { return time.Now().Round(0) }
	}
	if c.Uptime == nil {
		c.Uptime = machine.Uptime
	}
	return &c
}

// planNode returns the node's facts that plan needs of any pod.
func (c *Config) planNode() podstate.Node {
	return podstate.Node{
		HostIPs:      c.Node().HostIPs,
		IPv6First:    c.Node().IPv6First,
		BackoffFirst: c.BackoffFirst,
		BackoffMax:   c.BackoffMax,
		RuntimeName:  c.RuntimeName(),
	}
}

// Watchers hear about changes of pods: *podsapi.Server. The methods must not block.
type Watchers interface {
	// Changed is called after each sync of a pod, and when a source begins or ceases to have it.
	Changed(pod types.UID)
	// Synced is called when the supervisor knows the pods of every source.
	Synced()
}

// noWatchers is an agent whose pods are not watched.
type noWatchers struct{}

func (noWatchers) Changed(types.UID) {}
func (noWatchers) Synced()           {}
