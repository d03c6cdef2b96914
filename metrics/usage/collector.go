package usage

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/kube/poddir"
)

// runtimeTimeout is how long a request waits for the runtime in all: clients such as metrics-server and Prometheus give
// up after 10 s. Without an answer, the response lacks the values that only the runtime has.
const runtimeTimeout = 4 * time.Second

// Runtime has the calls to the container runtime.
type Runtime interface {
	// List lists all sandboxes and containers.
	List(ctx context.Context) ([]*runtimeapi.PodSandbox, []*runtimeapi.Container, error)
	// SandboxImage returns the image of a sandbox; empty if the runtime does not report it.
	SandboxImage(ctx context.Context, sandbox string) (string, error)
	// ListContainerStats returns the statistics of all containers, with the sizes of their writable layers.
	ListContainerStats(ctx context.Context) ([]*runtimeapi.ContainerStats, error)
	// PodContainerStats returns the statistics of the containers of the pod with this UID.
	PodContainerStats(ctx context.Context, pod string) ([]*runtimeapi.ContainerStats, error)
	// LayerDir returns the directory of a container's writable layer; empty if the runtime does not name it.
	LayerDir(ctx context.Context, container string) (string, error)
	ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error)
}

// Pod is a pod of the node.
type Pod struct {
	*corev1.Pod
	// Cgroup is the pod's cgroup as a path below the root of the hierarchy; empty if pods have none.
	Cgroup string
	// Started is the time at which the runtime created its sandbox.
	Started time.Time
	// Orphaned: no source knows the pod any more, so that another may have its name.
	Orphaned bool
	// Images has the images of the running containers as the runtime names them, by container ID. It may name one by its
	// digest.
	Images map[string]string
	// Volumes has the volumes that are separate file systems or devices, by their names in the spec.
	Volumes map[string]Volume
}

// Volume is a volume that a driver has mounted.
type Volume struct {
	// Path is its mount point, or its device if the containers use it as one.
	Path   string
	Device bool
	// Claim is the name of the PersistentVolumeClaim; empty for an inline volume of the pod.
	Claim string
	// Ask asks the driver for the figures. If it has none, ok is false; the health of the volume is used in both cases. If
	// Ask is nil, the figures are those of the file system or the device at Path.
	Ask func(ctx context.Context) (f Figures, ok bool)
}

// Figures has the usage of a volume, in bytes and inodes. Unknown values are 0.
type Figures struct {
	Capacity, Available, Used      uint64
	Inodes, InodesFree, InodesUsed uint64
	// Abnormal reports whether the volume is unhealthy; nil if the driver does not report the health.
	Abnormal *bool
}

// Config has the dependencies of a Collector.
type Config struct {
	Node string
	// Hierarchy reads the cgroups; PodsCgroup is kubepods and ClassCgroups the classes below it.
	Hierarchy    *Hierarchy
	PodsCgroup   string
	ClassCgroups []string
	// AgentCgroup is the cgroup of the agent, RuntimeCgroup that of the container runtime, and SystemCgroup that of other
	// processes of the system; empty if it is not known.
	AgentCgroup, RuntimeCgroup, SystemCgroup string
	Runtime                                  Runtime
	// WalkLayers reports whether to measure writable layers here instead of asking the runtime, if it names their
	// directories. CRI-O measures a container that is being stopped only when that has ended. Until then it gives
	// no statistics and removes nothing. Optional.
	WalkLayers func() bool
	// Pods returns the pods that run on the node now.
	Pods func(ctx context.Context) ([]Pod, error)
	// RootDir is the root directory of the agent, PodsDir the directory of the pods, LogsDir that of the containers'
	// logs.
	RootDir, PodsDir, LogsDir string
	// Boot is the boot time of the machine.
	Boot time.Time
	// SystemOOMs returns how often the kernel has ended a process because the machine had no memory left. Optional.
	SystemOOMs func() uint64
	Log        *slog.Logger
}

// Settings returns what a Collector needs of the configuration and of the machine. The caller adds the rest.
func Settings(c *config.Config) Config {
	return Config{
		Node:          c.Node.Name,
		RootDir:       c.Paths.Root,
		PodsDir:       filepath.Join(c.Paths.Root, poddir.Pods),
		LogsDir:       c.Kubelet.PodLogsDir,
		Boot:          bootTime(),
		AgentCgroup:   ownCgroup(),
		RuntimeCgroup: c.RuntimeCgroup,
		SystemCgroup:  c.Kubelet.SystemCgroups,
	}
}

// Collector measures on demand. It is safe for use by many goroutines.
type Collector struct {
	cfg   Config
	book  book
	rates rates
	disks *disks
	far   faraway
	// layerDirs has the directories of writable layers (string) by container ID.
	layerDirs sync.Map
}

// New returns a collector. It reads nothing.
func New(cfg Config) *Collector {
	return &Collector{cfg: cfg, disks: newDisks(cfg.Log)}
}

// podUse is a pod with its current usage.
type podUse struct {
	Pod
	use Usage
	// known reports whether the pod has a cgroup that could be read.
	known      bool
	sandbox    *containerUse
	containers []containerUse
}

// containerUse is a running container, or a sandbox, with its current usage.
type containerUse struct {
	identity
	// cgroup is its cgroup. For a container without one it is the container's ID, which names none.
	cgroup string
	use    Usage
}

// WorkingSets returns the memory that the containers of a pod use, in bytes by container. It is empty for a pod without
// a cgroup, and if the runtime does not say in time which container is which.
func (c *Collector) WorkingSets(ctx context.Context, pod types.UID) map[string]int64 {
	pods, _ := c.look(ctx, None) // of all pods, so that the identities of all containers stay cached
	used := map[string]int64{}
	for i := range pods {
		if pods[i].UID != pod {
			continue
		}
		for j := range pods[i].containers {
			one := &pods[i].containers[j]
			if use, ok := c.cfg.Hierarchy.read(one.cgroup, Basic); ok && use.HasMemory {
				used[one.name] = int64(use.WorkingSet)
			}
		}
	}
	return used
}

// Cgroup returns the usage of a cgroup; path is below the root of the hierarchy. It returns false if there is none.
func (c *Collector) Cgroup(path string) (Usage, bool) { return c.cfg.Hierarchy.read(path, Full) }

// look reads the cgroups of all pods and of the containers in them. With an error, containers are missing; the list is
// nil if the pods are not known.
func (c *Collector) look(ctx context.Context, d Detail) ([]podUse, error) {
	pods, err := c.cfg.Pods(ctx)
	if err != nil {
		return nil, err
	}
	return c.measure(ctx, pods, d)
}

// measure reads the cgroups of pods and of the containers in them. With an error, containers are missing.
func (c *Collector) measure(ctx context.Context, pods []Pod, d Detail) ([]podUse, error) {
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	all := make([]podUse, 0, len(pods))
	dirs := make([][]string, len(pods))
	var ids []string
	for i := range pods {
		dirs[i] = c.containerDirs(pods[i].Cgroup)
		for _, dir := range dirs[i] {
			ids = append(ids, containerID(dir))
		}
		ids = slices.AppendSeq(ids, maps.Keys(pods[i].Images))
	}
	known, err := c.book.identify(ctx, c.cfg.Runtime, ids)
	if err != nil {
		c.cfg.Log.Warn("cannot list the containers of the runtime, their usage is missing", "err", err)
	}
	for i, pod := range pods {
		p := podUse{Pod: pod}
		if pod.Cgroup != "" && d > None {
			p.use, p.known = c.cfg.Hierarchy.read(pod.Cgroup, d)
		}
		for _, dir := range dirs[i] {
			who, ok := known[containerID(dir)]
			if !ok {
				continue
			}
			if image := pod.Images[who.id]; image != "" && !strings.HasPrefix(image, "sha256:") {
				who.image = image
			}
			one := containerUse{identity: who, cgroup: path.Join(pod.Cgroup, dir)}
			if d > None {
				if one.use, ok = c.cfg.Hierarchy.read(one.cgroup, d); !ok {
					continue // the container has just ended
				}
			}
			if who.sandbox {
				p.sandbox = &one
			} else if !c.cfg.Hierarchy.empty(one.cgroup) { // CRI-O keeps the cgroup of an ended container until its removal
				p.add(one)
			}
		}
		all = append(all, p)
	}
	return all, cmp.Or(c.addGuests(ctx, all, known, d), err)
}

// add adds a container, unless a newer instance of its name is known. An ended one whose process cannot be killed keeps
// its cgroup.
func (p *podUse) add(one containerUse) {
	i := slices.IndexFunc(p.containers, func(c containerUse) bool { return c.name == one.name })
	switch {
	case i < 0:
		p.containers = append(p.containers, one)
	case one.created.After(p.containers[i].created):
		p.containers[i] = one
	}
}

// process returns the PID of one process of the pod; 0 if none runs. A sandbox of CRI-O has no process, unless the
// containers share a PID namespace.
func (c *Collector) process(p *podUse) int {
	if p.sandbox != nil {
		if pid := c.cfg.Hierarchy.process(p.sandbox.cgroup); pid != 0 {
			return pid
		}
	}
	for i := range p.containers {
		if pid := c.cfg.Hierarchy.process(p.containers[i].cgroup); pid != 0 {
			return pid
		}
	}
	return 0
}

// containerDirs returns the names of the cgroups of containers below a pod's cgroup.
func (c *Collector) containerDirs(cgroup string) []string {
	if cgroup == "" {
		return nil
	}
	names := c.cfg.Hierarchy.children(cgroup)
	kept := names[:0]
	for _, name := range names {
		if containerID(name) != "" {
			kept = append(kept, name)
		}
	}
	return kept
}

// containerID returns the ID of a container from the name of its cgroup; empty for other cgroups in a pod's cgroup,
// such as that of CRI-O's monitor of a container. With the cgroupfs driver the name is the ID for containerd and
// "crio-ID" for CRI-O; with systemd it is "cri-containerd-ID.scope", "crio-ID.scope" or similar.
func containerID(dir string) string {
	if strings.HasPrefix(dir, "crio-conmon-") {
		return ""
	}
	name, scope := strings.CutSuffix(dir, ".scope")
	if scope {
		name = name[strings.LastIndexByte(name, '-')+1:]
	}
	name = strings.TrimPrefix(name, "crio-")
	if len(name) < 12 {
		return ""
	}
	for _, c := range []byte(name) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return ""
		}
	}
	return name
}
