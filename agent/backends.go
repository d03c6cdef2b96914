package agent

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/nodelet/nodelet/agent/admission"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/cri/images"
	"github.com/nodelet/nodelet/cri/logs"
	"github.com/nodelet/nodelet/host/cgroups"
	"github.com/nodelet/nodelet/host/userns"
	"github.com/nodelet/nodelet/kube/objects"
	"github.com/nodelet/nodelet/kube/status"
	"github.com/nodelet/nodelet/probes"
	"github.com/nodelet/nodelet/volumes"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// Backends are the parts that act on the node, and its facts. cmd/nodelet sets them once; after that they are only
// read. Optional ones may be nil: complete replaces them by implementations that do nothing.
type Backends struct {
	Runtime *cri.Client
	Images  *images.Puller
	Volumes Volumes
	// PodFS keeps the agent's own files in the pods' directories.
	PodFS *podfs.FS
	// Devices allocates the devices of device plugins to containers; nil if there are none.
	Devices Devices
	// Claims prepares resource claims; nil if there are none.
	Claims  Claims
	Cgroups *cgroups.Tree
	Probes  *probes.Prober
	// Objects returns the objects that a pod may refer to: those of the API server, or of the manifests for a static
	// pod.
	Objects func(pod *corev1.Pod) Objects
	Status  *status.Publisher
	Events  *status.Recorder
	// Node returns the node's facts as spec needs them.
	Node func() *spec.Node
	// Admit decides whether a pod that is new on the node can run together with the pods already admitted.
	Admit func(pod *corev1.Pod, others []*corev1.Pod) admission.Verdict
	// NodeSeen is closed when the Node object is known: before that no pod of the API server is admitted.
	NodeSeen <-chan struct{}
	// Doomed returns the eviction of a pod that an earlier run of the agent has begun, or nil. Optional.
	Doomed func(pod *corev1.Pod) *Eviction
	// RuntimeName returns the runtime's own name, for example containerd; it prefixes container IDs in statuses. It is
	// known before the supervisor runs, and does not change while the runtime is unavailable.
	RuntimeName func() string
	// Handler returns what a runtime handler can do, by its name; the default one has none. Optional.
	Handler func(name string) Handler
	// UserNS allocates IDs for pods with a user namespace of their own.
	UserNS *userns.Table
	// NetworkProblem returns what is wrong with the network of a pod, or "". The caller of VerdictChanged notifies the
	// supervisor about a change. Optional.
	NetworkProblem func(pod types.UID) string
	// Pulled is called when an image has been pulled.
	Pulled func()
	// Gone is called when nothing of a pod is left on the node, and after the first list of the runtime's pods.
	// Optional.
	Gone func()
	// BackoffFirst and BackoffMax bound the crash-loop back-off; zero means the kubelet's 10 s and five minutes.
	BackoffFirst, BackoffMax time.Duration
	// Metrics counts what the agent does; nil for no metrics.
	Metrics Metrics
	// Logs makes and removes the pods' log directories and the links to their logs.
	Logs *logs.Tree
}

// Devices allocates the devices of device plugins to containers. It is *devices.Devices, where each method is
// described.
type Devices interface {
	Reserve(pod *corev1.Pod, unused func(types.UID) bool) (allocate func(context.Context) error, err error)
	Container(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (*deviceplugin.ContainerAllocateResponse, error)
	Release(pod types.UID)
}

// Claims prepares resource claims. It is *dra.DRA, where each method is described.
type Claims interface {
	Prepare(ctx context.Context, pod *corev1.Pod) error
	Unprepare(ctx context.Context, pod types.UID) error
	Holds(pod types.UID) bool
	Pods() []types.UID
	Devices(pod *corev1.Pod, c *corev1.Container) ([]string, error)
}

// Handler is what a runtime handler can do.
type Handler struct {
	// RecursiveReadOnly reports whether it can make read-only mounts recursive.
	RecursiveReadOnly bool
	// UserNamespaces reports whether it can give pods a user namespace.
	UserNamespaces bool
}

// Objects returns the API objects that pods refer to: from kube/objects with an API server, else from the manifests.
type Objects interface {
	volumes.Objects
	// Use sets what a pod refers to; nil if the pod is gone.
	Use(pod types.UID, refs []objects.Ref)
	// Prime reads, in the background, what a running pod needs to restart a container.
	Prime(pod types.UID)
	Services(ctx context.Context, namespace string) ([]*corev1.Service, error)
	PullSecrets(ctx context.Context, pod *corev1.Pod) ([]*corev1.Secret, error)
	RuntimeHandler(ctx context.Context, class string) (string, error)
}

// Exec runs a command in a container for a probe or a hook.
func (h *Backends) Exec(ctx context.Context, id string, cmd []string, timeout time.Duration) ([]byte, int32, error) {
	r, err := h.Runtime.ExecSync(ctx, id, cmd, timeout)
	return append(r.Stdout, r.Stderr...), r.ExitCode, err
}

// planNode returns the node's facts that plan needs.
func (h *Backends) planNode(s *podstate.Sandbox) podstate.Node {
	return podstate.Node{
		HostIPs:           h.Node().HostIPs,
		BackoffFirst:      h.BackoffFirst,
		BackoffMax:        h.BackoffMax,
		RuntimeName:       h.RuntimeName(),
		RecursiveReadOnly: h.handlerOf(s).RecursiveReadOnly,
	}
}

// handlerOf returns what the handler of a sandbox can do; that of the default handler if there is no sandbox yet.
func (h *Backends) handlerOf(s *podstate.Sandbox) Handler {
	name := ""
	if s != nil {
		name = s.Handler
	}
	return h.Handler(name)
}
