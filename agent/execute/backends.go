package execute

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cri/images"
	"github.com/nodelet/nodelet/host/userns"
	"github.com/nodelet/nodelet/volumes"
)

// Backends act on the node for the steps. Each method is described where it is implemented. All are required.
type Backends struct {
	Runtime Runtime
	Images  *images.Puller
	Volumes Volumes
	// PodFiles keeps the agent's own files in the pods' directories.
	PodFiles PodFiles
	// Logs makes and removes the pods' log directories and the links to their logs.
	Logs      Logs
	Cgroups   Cgroups
	Devices   Devices
	Placement Placement
	Claims    Claims
	// UserNamespaces allocates user and group IDs of the host to pods with a user namespace of their own.
	UserNamespaces *userns.Table
	// Objects returns the objects that a pod may refer to: those of the API server, or of the manifests for a static pod.
	Objects func(pod *corev1.Pod) Objects
	Events  Events
	Metrics Metrics
	// Node returns the node's facts as spec needs them. FreshNode reads the node's DNS settings first, for sandboxes; it
	// returns an error if it never could.
	Node      func() *spec.Node
	FreshNode func() (*spec.Node, error)
	// HandlerFeatures returns what a runtime handler can do, by its name; the default one has none. It may return nil.
	HandlerFeatures func(name string) *runtimeapi.RuntimeHandlerFeatures
	// NoImageSubPath returns why the runtime cannot mount a subPath of an image volume; empty if it can.
	NoImageSubPath func() string
	// Working is called before each step: the agent is not at rest.
	Working func()
}

// Runtime is the container runtime: *cri.Client.
type Runtime interface {
	RunPodSandbox(ctx context.Context, cfg *runtimeapi.PodSandboxConfig, handler string) (id string, err error)
	StopPodSandbox(ctx context.Context, id string) error
	RemovePodSandbox(ctx context.Context, id string) error
	UpdatePodSandboxResources(ctx context.Context, r *runtimeapi.UpdatePodSandboxResourcesRequest) error
	PodSandboxStats(ctx context.Context, id string) (*runtimeapi.PodSandboxStats, error)
	CreateContainer(ctx context.Context, sandbox string, cfg *runtimeapi.ContainerConfig,
		sandboxCfg *runtimeapi.PodSandboxConfig) (id string, err error)
	StartContainer(ctx context.Context, id string) error
	StopContainer(ctx context.Context, id string, grace time.Duration) error
	RemoveContainer(ctx context.Context, id string) error
	UpdateContainerResources(ctx context.Context, id string, r *runtimeapi.LinuxContainerResources) error
	Output(ctx context.Context, id string, cmd []string, timeout time.Duration) (output []byte, exit int32, err error)
}

// Volumes mounts and unmounts the volumes of pods: *volumes.Manager.
type Volumes interface {
	Mount(ctx context.Context, r volumes.Request, objects volumes.Objects) (volumes.Mounted, error)
	Unmount(ctx context.Context, pod types.UID, v volumes.OnDisk) error
	List(pod types.UID) ([]volumes.OnDisk, error)
}

// PodFiles is the pods' directories: *podfs.FS.
type PodFiles interface {
	MakePodDir(pod types.UID) error
	RemovePodDir(ctx context.Context, pod types.UID) error
	WriteHosts(pod types.UID, content []byte) error
	TerminationLog(pod types.UID, container, name string) error
	Subpath(ctx context.Context, s volumes.SubPath) (hostPath string, err error)
	MarkReset(pod types.UID, mark string) error
	UnmarkReset(pod types.UID) error
}

// Logs is the directories of the pods' logs: *logs.Tree.
type Logs interface {
	Make(dir string) error
	Link(log, name string) error
	RemoveLog(log, link string) error
	RemovePod(pod *metav1.ObjectMeta) error
}

// Cgroups is the cgroups of pods: *podcgroups.Cgroups.
type Cgroups interface {
	Prepare(pod *corev1.Pod) (*podstate.Size, error)
	Restore(pod *corev1.Pod) error
	Resize(pod *corev1.Pod, to podstate.Size) error
	MemoryUsage(pod *corev1.Pod) (bytes uint64, err error)
	ContainerMemory(pod *corev1.Pod, id string) (bytes uint64, ok bool)
	Remove(ctx context.Context, pod *corev1.Pod) error
}

// Devices gives the devices of device plugins to containers: *devices.Devices.
type Devices interface {
	Container(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (*deviceplugin.ContainerAllocateResponse, error)
	Release(pod types.UID)
}

// Placement says which CPUs and which memory containers have for themselves: *placement.Manager.
type Placement interface {
	Created(pod types.UID, container string) (cpus, nodes string)
	NotCreated(pod types.UID, container string)
	Starting(pod *corev1.Pod, container string)
	Started(pod types.UID, container string)
	Release(pod types.UID)
}

// Claims prepares resource claims: *dra.DRA.
type Claims interface {
	Prepare(ctx context.Context, pod *corev1.Pod) error
	Unprepare(ctx context.Context, pod types.UID) error
	Devices(pod *corev1.Pod, c *corev1.Container) ([]string, error)
}

// Objects returns the API objects that steps need: *objects.Objects with an API server, else *objects.Local.
type Objects interface {
	volumes.Objects
	Services(ctx context.Context, namespace string) ([]*corev1.Service, error)
	PullSecrets(ctx context.Context, pod *corev1.Pod) (found []*corev1.Secret, missing []string, err error)
	RuntimeHandler(ctx context.Context, class string) (string, error)
	KnownHandler(class string) string
}

// Events records events about a pod, or about one of its containers if container is not empty: *status.Recorder.
type Events interface {
	PodEvent(pod *corev1.Pod, container, eventType, reason, message string)
}

// Metrics counts steps and calls. It is called from many goroutines and must not block.
type Metrics interface {
	// Step counts a step that has ended; p is nil if it succeeded.
	Step(pod *corev1.Pod, s podstate.Step, took time.Duration, p *podstate.Problem)
	// SandboxRun counts a call of RunPodSandbox, by its runtime handler.
	SandboxRun(handler string, took time.Duration, err error)
	// HookFellBack counts a hook that spoke HTTP instead of HTTPS, SleepEnded a sleep hook that did not end by itself.
	HookFellBack()
	SleepEnded()
	// Pulled counts a pulled image.
	Pulled(bytes uint64, took time.Duration)
}
