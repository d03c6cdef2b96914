package eviction

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/eviction/policy"
	"github.com/nodelet/nodelet/host/cgroups"
	"github.com/nodelet/nodelet/host/pressure"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/metrics/usage"
)

const (
	// limitsTimeout is how long limits wait for directories that have not been measured lately.
	limitsTimeout = 300 * time.Millisecond
	// useTimeout is how long an eviction for disk waits for those that have never been measured.
	useTimeout = time.Minute
	// blameTimeout is how long an eviction waits for what the containers of its pod use: only its message needs that.
	blameTimeout = time.Second
)

// Runtime says where the container runtime keeps images and the writable layers of containers.
type Runtime interface {
	ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error)
	// Connections returns how many connections to the runtime there have been. With each it may keep its files elsewhere.
	Connections() uint64
	// AnsweredAfter reports whether the runtime has answered a call after t.
	AnsweredAfter(t time.Time) bool
}

// MachineConfig is what a Machine reads. All of it is required.
type MachineConfig struct {
	// RootDir is the agent's directory, which lies on the node's file system.
	RootDir string
	Cgroups *cgroups.Tree
	Usage   *usage.Collector
	Runtime Runtime
	Log     *slog.Logger
}

// Machine measures the machine that the agent runs on. It is safe for use by many goroutines.
type Machine struct {
	cfg  MachineConfig
	proc pressure.Proc

	mu sync.Mutex
	// stores is where the runtime keeps its files; empty until it has answered. connections is how many there had been
	// when it was asked.
	stores      stores
	connections uint64
	// unread is the last error by each signal that cannot be read.
	unread map[string]string
}

// NewMachine makes a Machine. Nothing is read yet.
func NewMachine(cfg MachineConfig) *Machine { return &Machine{cfg: cfg, unread: map[string]string{}} }

// levels collects levels and logs once what cannot be read.
type levels struct {
	*Machine
	all map[string]policy.Level
}

func (l *levels) put(signal string, level pressure.Level, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		delete(l.unread, signal)
		if level.Capacity > 0 {
			l.all[signal] = policy.Level(level)
		}
	case l.unread[signal] != err.Error():
		l.unread[signal] = err.Error()
		l.cfg.Log.Warn("cannot read an eviction signal, its thresholds have no effect", "signal", signal, "err", err)
	}
}

// Levels implements Node.
func (m *Machine) Levels() map[string]policy.Level {
	all := levels{m, map[string]policy.Level{}}
	memory, err := m.proc.Memory()
	all.put(policy.MemoryAvailable, memory, err)
	processes, err := m.proc.Processes()
	all.put(policy.PIDAvailable, processes, err)
	if pods, known := m.cfg.Usage.Cgroup(m.cfg.Cgroups.PodsCgroup()); known && pods.Limited() {
		limit := int64(pods.MemoryLimit)
		left := pressure.Level{Available: limit - int64(pods.WorkingSet), Capacity: limit}
		all.put(policy.AllocatableAvailable, left, nil)
	}
	return all.all
}

// RuntimeAnswered reports whether the runtime has answered a call after a time. It implements Node.
func (m *Machine) RuntimeAnswered(after time.Time) bool { return m.cfg.Runtime.AnsweredAfter(after) }

// WatchMemory implements Node.
func (m *Machine) WatchMemory(ctx context.Context, short func()) error {
	return m.proc.WatchMemory(ctx, short)
}

// DiskLevels implements Node.
func (m *Machine) DiskLevels(ctx context.Context) (_ map[string]policy.Level, complete bool) {
	all := levels{m, map[string]policy.Level{}}
	bytes, inodes, node, err := pressure.Disk(m.cfg.RootDir)
	all.put(policy.NodeFSAvailable, bytes, err)
	all.put(policy.NodeFSInodes, inodes, err)
	at, err := m.storesAt(ctx)
	complete = err == nil
	if at.images == "" && complete {
		return all.all, true // the runtime has no file system to speak of
	}
	var images, layers string
	if complete {
		bytes, inodes, images, err = pressure.Disk(at.images)
	}
	all.put(policy.ImageFSAvailable, bytes, err)
	all.put(policy.ImageFSInodes, inodes, err)
	if err == nil {
		bytes, inodes, layers, err = pressure.Disk(at.layers)
	}
	if layers == node || layers == images { // one of the levels above is theirs
		bytes, inodes = pressure.Level{}, pressure.Level{}
	}
	all.put(policy.ContainerFSAvailable, bytes, err)
	all.put(policy.ContainerFSInodes, inodes, err)
	return all.all, complete
}

// stores are the directories in which the runtime keeps images and the writable layers of containers; both are empty if
// it does not say.
type stores struct{ images, layers string }

// storesAt asks the runtime once for each connection where it keeps its files. Before it answers again, they count as
// where they were.
func (m *Machine) storesAt(ctx context.Context) (stores, error) {
	connections := m.cfg.Runtime.Connections()
	m.mu.Lock()
	at, same := m.stores, m.connections == connections
	m.mu.Unlock()
	if at.images != "" && same {
		return at, nil
	}
	info, err := m.cfg.Runtime.ImageFsInfo(ctx)
	switch {
	case err != nil && at.images != "":
		return at, nil
	case err != nil:
		return at, fmt.Errorf("ask the runtime where it keeps images: %w", err)
	}
	at.images = mountpoint(info.GetImageFilesystems())
	at.layers = cmp.Or(mountpoint(info.GetContainerFilesystems()), at.images)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stores, m.connections = at, connections
	return at, nil
}

func mountpoint(all []*runtimeapi.FilesystemUsage) string {
	if len(all) == 0 {
		return ""
	}
	return all[0].GetFsId().GetMountpoint()
}

// layout says on which of the node's file systems things are, by their names. Usually all are on one, or images and
// layers are together on another one. Images may also be alone on another one (KEP-4191).
type layout struct{ node, images, layers string }

// layout returns where things are. Without an answer of the runtime all are on the file system of the node.
func (m *Machine) layout(ctx context.Context) (layout, error) {
	at, err := m.storesAt(ctx)
	if err != nil {
		return layout{}, err
	}
	_, _, node, err := pressure.Disk(m.cfg.RootDir)
	if err != nil || at.images == "" {
		return layout{node, node, node}, err
	}
	_, _, images, errImages := pressure.Disk(at.images)
	_, _, layers, errLayers := pressure.Disk(at.layers)
	return layout{node, images, layers}, errors.Join(errImages, errLayers)
}

// of returns the file system that a signal is about.
func (l layout) of(signal string) string {
	switch {
	case policy.OnNodeFS(signal):
		return l.node
	case policy.OnContainerFS(signal):
		return l.layers
	}
	return l.images
}

// Frees reports whether the removal of images helps against a signal. It implements Node.
func (m *Machine) Frees(ctx context.Context, signal string) bool {
	on, err := m.layout(ctx)
	return err != nil || !policy.OnDisk(signal) || on.images == on.of(signal)
}

// Use implements Node.
func (m *Machine) Use(ctx context.Context, signal string, pods []*corev1.Pod) []policy.Pod {
	all := make([]policy.Pod, len(pods))
	for i, pod := range pods {
		all[i].Pod = pod
	}
	if policy.OnDisk(signal) {
		if err := m.disk(ctx, signal, pods, all); err != nil {
			m.cfg.Log.Warn("disk usage of the pods is unknown", "signal", signal, "err", err)
			return nil
		}
		return all
	}
	for i := range all {
		m.processes(&all[i])
	}
	return all
}

// disk measures what pods take of the file system that a signal is about.
func (m *Machine) disk(ctx context.Context, signal string, pods []*corev1.Pod, all []policy.Pod) error {
	on, err := m.layout(ctx)
	if err != nil {
		return err
	}
	short := on.of(signal)
	layers := func(*corev1.Pod) bool { return on.layers == short }
	local, err := m.cfg.Usage.Local(ctx, pods, useTimeout, layers)
	for i := range local {
		all[i].Usage = useOf(&local[i], on.node == short, on.layers == short)
	}
	return err
}

// useOf returns what a pod takes of a file system, as far as it is known: directories reports whether those of the
// agent are on it, and layers whether the layers are. Layers that are elsewhere are not part of l.
func useOf(l *usage.Local, directories, layers bool) policy.Usage {
	sum, known := l.Layer(), !layers || l.Layers != nil
	if directories {
		sum, known = l.Total(), !l.Late || len(l.Layers) > 0
	}
	return policy.Usage{Known: known, Disk: int64(sum.Bytes), Inodes: int64(sum.Inodes)}
}

// processes measures what a pod's processes use.
func (m *Machine) processes(p *policy.Pod) {
	path, err := m.cfg.Cgroups.PodParent(cgroups.Pod{UID: p.UID, QOS: podutil.QOS(p.Pod)})
	if err != nil {
		return
	}
	use, known := m.cfg.Usage.Cgroup(path)
	p.Memory, p.Processes = int64(use.WorkingSet), int64(use.Threads)
	p.Known = known && use.HasMemory
}

// Containers implements Node.
func (m *Machine) Containers(ctx context.Context, signal string, pod *corev1.Pod) map[string]int64 {
	ctx, cancel := context.WithTimeout(ctx, blameTimeout)
	defer cancel()
	if policy.OnMemory(signal) {
		return m.cfg.Usage.WorkingSets(ctx, pod.UID)
	}
	all, err := m.cfg.Usage.Local(ctx, []*corev1.Pod{pod}, limitsTimeout, func(*corev1.Pod) bool { return true })
	if err != nil || len(all) == 0 {
		return nil
	}
	used := map[string]int64{}
	for name, layer := range all[0].Layers {
		used[name] = int64(layer.Bytes + all[0].Logs[name].Bytes)
	}
	return used
}

// Storage implements Node.
func (m *Machine) Storage(ctx context.Context, pods []*corev1.Pod) []policy.Storage {
	local, err := m.cfg.Usage.Local(ctx, pods, limitsTimeout, policy.LimitsContainers)
	if err != nil {
		m.cfg.Log.Warn("limits of ephemeral storage are enforced without the writable layers of containers", "err", err)
	}
	all := make([]policy.Storage, len(local))
	for i := range local {
		all[i] = storageOf(&local[i])
	}
	return all
}

// storageOf returns what a pod takes as limits see it: layers count wherever they are.
func storageOf(l *usage.Local) policy.Storage {
	s := policy.Storage{
		Pod:        int64(l.Total().Bytes),
		Containers: map[string]int64{},
		Volumes:    map[string]int64{},
	}
	for name, log := range l.Logs {
		s.Containers[name] += int64(log.Bytes)
	}
	for name, layer := range l.Layers {
		s.Containers[name] += int64(layer.Bytes)
	}
	for name, volume := range l.Volumes {
		s.Volumes[name] = int64(volume.Bytes)
	}
	return s
}
