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

// Hands are the rooms that act on the world, and the facts of the node that they share. Set up once in cmd, then only
// read.
type Hands struct {
	Runtime *cri.Client
	Images  *images.Puller
	Volumes Volumes
	// PodFS keeps the agent's own files in the pods' directories.
	PodFS *podfs.FS
	// Devices gives the devices of device plugins to containers; nil if there are none.
	Devices Devices
	// Claims prepares resource claims; nil if there are none.
	Claims  Claims
	Cgroups *cgroups.Tree
	Probes  *probes.Prober
	// Objects gives the objects that a pod may refer to, by where the pod comes from.
	Objects func(pod *corev1.Pod) Objects
	Status  *status.Publisher
	Events  *status.Recorder
	// Node gives the node's facts as spec needs them.
	Node func() *spec.Node
	// Admit judges a pod that is new on the node, beside the pods already admitted.
	Admit func(pod *corev1.Pod, others []*corev1.Pod) admission.Verdict
	// NodeSeen is closed when the Node object is known: before that no pod of the API server is admitted.
	NodeSeen <-chan struct{}
	// Doomed tells of a pod that is new to this life of the agent whether an earlier one has begun to end it; nil for
	// nobody.
	Doomed func(pod *corev1.Pod) *Eviction
	// RuntimeName is how the runtime calls itself, for example containerd; it prefixes container IDs in statuses. It is
	// known before the supervisor runs, and stays while the runtime is away.
	RuntimeName func() string
	// Handler tells what a runtime handler can do, by its name; the default one has none.
	Handler func(name string) Handler
	// UserNS sets IDs aside for pods with a user namespace of their own.
	UserNS *userns.Table
	// NetworkProblem says what is wrong with a pod's network, empty for nothing; nil where nobody looks. A change is
	// told to the supervisor (VerdictChanged).
	NetworkProblem func(pod types.UID) string
	// Pulled is told when a pull has brought an image.
	Pulled func()
	// Gone is told when a pod has left the node altogether, and when it is first known which pods are there. May be nil.
	Gone func()
	// BackoffFirst and BackoffMax bound the crash-loop back-off; zero means the kubelet's 10 s and five minutes.
	BackoffFirst, BackoffMax time.Duration
	// Metrics counts what the agent does; nil for no metrics.
	Metrics Metrics
	// Logs makes and removes the pods' log directories and the links to their logs.
	Logs *logs.Tree
}

// Devices gives the devices of device plugins to containers. It is *devices.Devices, where each method is described.
type Devices interface {
	Reserve(pod *corev1.Pod, spent func(types.UID) bool) (allocate func(context.Context) error, err error)
	Container(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (*deviceplugin.ContainerAllocateResponse, error)
	Release(pod types.UID)
}

// Claims has resource claims prepared. It is *dra.DRA, where each method is described.
type Claims interface {
	Prepare(ctx context.Context, pod *corev1.Pod) error
	Unprepare(ctx context.Context, pod types.UID) error
	Holds(pod types.UID) bool
	Pods() []types.UID
	Devices(pod *corev1.Pod, c *corev1.Container) ([]string, error)
}

// Handler is what a runtime handler can do.
type Handler struct {
	// RecursiveReadOnly: it can make read-only mounts recursive.
	RecursiveReadOnly bool
	// UserNamespaces: it can give pods a user namespace.
	UserNamespaces bool
}

// Objects gives the API objects that pods refer to: kube/objects with an API server, the manifest directory without.
type Objects interface {
	volumes.Objects
	// Use names what a pod refers to from now on; nil when the pod is gone.
	Use(pod types.UID, refs []objects.Ref)
	// Prime reads, in the background, what a running pod needs to restart a container.
	Prime(pod types.UID)
	Services(ctx context.Context, namespace string) ([]*corev1.Service, error)
	PullSecrets(ctx context.Context, pod *corev1.Pod) ([]*corev1.Secret, error)
	RuntimeHandler(ctx context.Context, class string) (string, error)
}

// Exec runs a command in a container for a probe or a hook.
func (h *Hands) Exec(ctx context.Context, id string, cmd []string, timeout time.Duration) ([]byte, int32, error) {
	r, err := h.Runtime.ExecSync(ctx, id, cmd, timeout)
	return append(r.Stdout, r.Stderr...), r.ExitCode, err
}

// planNode are the node's facts as plan wants them.
func (h *Hands) planNode(s *podstate.Sandbox) podstate.Node {
	return podstate.Node{HostIPs: h.Node().HostIPs, BackoffFirst: h.BackoffFirst, BackoffMax: h.BackoffMax,
		RuntimeName: h.RuntimeName(), RecursiveReadOnly: h.handlerOf(s).RecursiveReadOnly}
}

// handlerOf is what the handler of a sandbox can do; that of the default one where there is no sandbox yet.
func (h *Hands) handlerOf(s *podstate.Sandbox) Handler {
	name := ""
	if s != nil {
		name = s.Handler
	}
	return h.Handler(name)
}
