package usage

import (
	"context"
	"log/slog"
	"path"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runtimePatience is how long figures wait for an answer of the runtime: without it they lack what only the runtime
// knows.
const runtimePatience = 4 * time.Second

// Runtime answers for the container runtime.
type Runtime interface {
	// List lists all sandboxes and containers.
	List(ctx context.Context) ([]*runtimeapi.PodSandbox, []*runtimeapi.Container, error)
	// SandboxImage is the image that a sandbox was made from, empty where the runtime does not say.
	SandboxImage(ctx context.Context, sandbox string) (string, error)
	// ListContainerStats gives the size of the containers' writable layers, among others.
	ListContainerStats(ctx context.Context) ([]*runtimeapi.ContainerStats, error)
	// PodContainerStats gives the same of the containers of the pod with this UID.
	PodContainerStats(ctx context.Context, pod string) ([]*runtimeapi.ContainerStats, error)
	ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error)
}

// Pod is a pod of the node.
type Pod struct {
	*corev1.Pod
	// Cgroup is the pod's own, as a path below the hierarchy's root; empty where pods have none.
	Cgroup string
	// Started is when the agent took the pod on.
	Started time.Time
	// Volumes are those that are file systems of their own, by the names in its spec.
	Volumes map[string]Volume
}

// Volume is a volume that a driver has mounted.
type Volume struct {
	// Dir is its mount point.
	Dir string
	// Claim is the name of the PersistentVolumeClaim; empty for one that is written into the pod.
	Claim string
	// Ask asks the driver for the figures; ok is false where it gives none, and those of the mount point count. What it
	// says of the volume's health counts in either case. May be nil.
	Ask func(ctx context.Context) (f Figures, ok bool)
}

// Figures say how full a volume is, in bytes and inodes. What is not known is 0.
type Figures struct {
	Capacity, Available, Used      uint64
	Inodes, InodesFree, InodesUsed uint64
	// Abnormal: the driver says that the volume is not well; nil where it says nothing of that.
	Abnormal *bool
}

// Config says what a Collector needs of others.
type Config struct {
	Node string
	// Hierarchy reads the cgroups; PodsCgroup is kubepods and ClassCgroups the classes below it.
	Hierarchy    *Hierarchy
	PodsCgroup   string
	ClassCgroups []string
	// AgentCgroup is where the agent runs, RuntimeCgroup where the container runtime does; empty where that is not known.
	AgentCgroup, RuntimeCgroup string
	Runtime                    Runtime
	// Pods are those that run on the node now.
	Pods func(ctx context.Context) ([]Pod, error)
	// RootDir is the agent's, PodsDir that of the pods, LogsDir that of the containers' logs.
	RootDir, PodsDir, LogsDir string
	// Boot is when the machine was started.
	Boot time.Time
	Log  *slog.Logger
}

// Collector measures on demand. It is safe for use by many goroutines.
type Collector struct {
	cfg   Config
	book  book
	rates rates
	disks disks
	far   faraway
}

// New makes a collector. Nothing is read yet.
func New(cfg Config) *Collector {
	c := &Collector{cfg: cfg}
	c.disks.log = cfg.Log
	return c
}

// podUse is a pod with what it uses now.
type podUse struct {
	Pod
	use Usage
	// known: the pod has a cgroup, and it could be read.
	known      bool
	sandbox    *containerUse
	containers []containerUse
}

// containerUse is a running container, or a sandbox, with what it uses now.
type containerUse struct {
	identity
	cgroup string
	use    Usage
}

// look reads the cgroups of all pods and of the containers in them.
func (c *Collector) look(ctx context.Context, d Detail) ([]podUse, error) {
	pods, err := c.cfg.Pods(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]podUse, 0, len(pods))
	dirs := make([][]string, len(pods))
	var ids []string
	for i := range pods {
		dirs[i] = c.containerDirs(pods[i].Cgroup)
		for _, dir := range dirs[i] {
			ids = append(ids, containerID(dir))
		}
	}
	known, err := c.book.identify(ctx, c.cfg.Runtime, ids)
	if err != nil {
		c.cfg.Log.Warn("the runtime does not name its containers, their usage is left out", "err", err)
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
			one := containerUse{identity: who, cgroup: path.Join(pod.Cgroup, dir)}
			if d > None {
				if one.use, ok = c.cfg.Hierarchy.read(one.cgroup, d); !ok {
					continue // it has just ended
				}
			}
			if who.sandbox {
				p.sandbox = &one
			} else if !c.cfg.Hierarchy.empty(one.cgroup) { // CRI-O keeps that of a container that has ended until it is removed
				p.containers = append(p.containers, one)
			}
		}
		all = append(all, p)
	}
	return all, nil
}

// process is one of the pod's, 0 if none runs. A sandbox of CRI-O has no process unless the containers share one's
// PIDs.
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

// containerDirs are the cgroups of containers below a pod's.
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

// containerID reads the ID of a container from the name of its cgroup. With the cgroupfs driver that is the ID itself
// with containerd, "crio-ID" with CRI-O; with systemd "cri-containerd-ID.scope", "crio-ID.scope" or the like. What
// else a pod's cgroup may hold has none, such as CRI-O's monitor of a container.
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
