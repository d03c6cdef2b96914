package placement

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/placement/numa"
	"github.com/nodelet/nodelet/agent/placement/policy"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/host/topology"
	"github.com/nodelet/nodelet/internal/latest"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/plugins/devices"
)

// Config is what a Manager needs. All fields are required, but Machine and Devices only if a policy is on.
type Config struct {
	// Root is the agent's root directory, in which the state files are.
	Root     string
	Settings Settings
	Machine  *topology.Machine
	// Reservation is what Node Allocatable keeps from pods: kubeReserved, systemReserved and evictionHard together.
	Reservation corev1.ResourceList
	Runtime     Runtime
	// WithEnded calls f with a function that reports whether a pod has ended, so that nothing of it uses a CPU any more.
	// No pod is admitted before f has returned.
	WithEnded func(ctx context.Context, f func(ended func(types.UID) bool))
	// Devices returns the devices of device plugins that a pod can get, by resource.
	Devices func(pod *corev1.Pod) devices.Views
	Metrics Metrics
	Log     *slog.Logger
}

// Metrics counts what the managers do. It must not block.
type Metrics interface {
	// Decided counts one decision about a pod.
	Decided(took time.Duration, refused bool, count policy.Count)
	// CPUs says how many CPUs containers can still get for themselves, and how many they have of each NUMA node.
	CPUs(free, exclusive int, perNode map[int]int)
}

// Manager gives containers CPUs and memory of their own. It is safe for concurrent use.
type Manager struct {
	cfg    Config
	policy *policy.Policy
	files  files
	// saving is held while the files are written, and taken before mu.
	saving sync.Mutex

	mu sync.Mutex
	// state is replaced, never changed: what was read under mu stays valid.
	state policy.State
	// unsaved: state is not in the files yet.
	unsaved bool
	// made are the CPUs with which containers were created, by pod and name; empty if they are in doubt.
	made map[types.UID]map[string]string
	// changed says that state has changed, or that a container may have other CPUs than it should.
	changed latest.Signal
}

// New reads the state that an earlier run of the agent or a kubelet has left. An error says that the policies do not
// fit the machine, or that the state does not fit the policies. It writes nothing, Run does: an agent that did not
// start on a full disk could not free it.
func New(cfg Config) (*Manager, error) {
	p, err := cfg.Settings.build(cfg.Machine, cfg.Reservation)
	if err != nil {
		return nil, err
	}
	m := &Manager{
		cfg:     cfg,
		policy:  p,
		files:   files{root: cfg.Root, cpu: cfg.Settings.CPUPolicy, memory: cfg.Settings.MemoryPolicy},
		made:    map[types.UID]map[string]string{},
		changed: latest.NewSignal(),
	}
	left, err := m.files.load()
	if err != nil {
		return nil, err
	}
	if m.state, err = p.Start(left); err != nil {
		return nil, fmt.Errorf("invalid state, please drain node and remove the files %s and %s below %s: %w", cpuFile,
			memoryFile, cfg.Root, err)
	}
	m.set(m.state)
	return m, nil
}

// Admit decides what a new pod gets. The pod is admitted when record has returned without an error; record is nil if
// there is nothing to write. affinity are the NUMA nodes that devices of each container should come from.
func (m *Manager) Admit(pod *corev1.Pod) (record func() error, affinity map[string]numa.Mask,
	rejection *podstate.Rejection) {
	free := m.devicesFor(pod)
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.decide(pod, free)
	if d.Rejection != nil {
		return nil, nil, d.Rejection
	}
	if cpus, memory := has(d.State, pod.UID); !cpus && !memory {
		return nil, d.Affinity, nil
	}
	m.set(d.State)
	return m.save, d.Affinity, nil
}

// Resume gives a pod that was admitted earlier what it asks for and does not have: a policy was turned on, or its file
// was removed, while the pod was running. If it cannot have that, it goes on without.
func (m *Manager) Resume(pod *corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	cpus, memory := has(m.state, pod.UID)
	if asksCPUs, asksMemory := m.policy.Asks(pod); (cpus || !asksCPUs) && (memory || !asksMemory) {
		return
	}
	d := m.policy.Admit(pod, m.state, nil)
	if d.Rejection != nil {
		m.cfg.Log.Warn("cannot give exclusive CPUs and memory to a pod that was admitted without them, recreate the pod",
			"pod", podutil.Name(pod), "podUID", pod.UID, "err", d.Rejection)
		return
	}
	s := d.State
	if cpus {
		s.CPU = m.state.CPU
	}
	if memory {
		s.Memory = m.state.Memory
	}
	if hasCPUs, hasMemory := has(s, pod.UID); hasCPUs != cpus || hasMemory != memory {
		m.set(s)
	}
}

// has reports whether a pod has CPUs and memory for itself.
func has(s policy.State, pod types.UID) (cpus, memory bool) {
	_, cpus = s.CPU.Containers[pod]
	_, memory = s.Memory.Containers[string(pod)]
	return cpus, memory
}

// Rejection returns why a pod that gets nothing, because it is rejected for another reason, would be rejected here; nil
// if it would not.
func (m *Manager) Rejection(pod *corev1.Pod) *podstate.Rejection {
	free := m.devicesFor(pod)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.decide(pod, free).Rejection
}

// Fits reports whether a pod that was refused could have now what it asks for. No metric counts this question.
func (m *Manager) Fits(pod *corev1.Pod) bool {
	free := m.devicesFor(pod)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.policy.Admit(pod, m.state, free).Rejection == nil
}

// decide decides about the admission of a pod, which metrics count. mu is held.
func (m *Manager) decide(pod *corev1.Pod, free policy.Devices) policy.Decision {
	began := time.Now()
	d := m.policy.Admit(pod, m.state, free)
	m.cfg.Metrics.Decided(time.Since(began), d.Rejection != nil, d.Count)
	return d
}

// set makes s the state. mu is held.
func (m *Manager) set(s policy.State) {
	m.state, m.unsaved = s, true
	m.measure()
	m.changed.Set()
}

// measure updates the metrics. mu is held.
func (m *Manager) measure() {
	if m.policy.CPU != nil {
		exclusive := m.state.CPU.Exclusive()
		m.cfg.Metrics.CPUs(m.policy.CPU.Free(&m.state.CPU).Size(), exclusive.Size(), m.policy.CPU.PerNode(exclusive))
	}
}

// pods returns the pods that have something. mu is held.
func (m *Manager) pods() []types.UID {
	all := slices.Collect(maps.Keys(m.state.CPU.Containers))
	for uid := range m.state.Memory.Containers {
		if _, seen := m.state.CPU.Containers[types.UID(uid)]; !seen {
			all = append(all, types.UID(uid))
		}
	}
	return all
}

// ReleaseEnded gives back what ended pods have.
func (m *Manager) ReleaseEnded(ended func(types.UID) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, uid := range m.pods() {
		if ended(uid) {
			m.release(uid)
		}
	}
}

// release gives back what a pod has. mu is held.
func (m *Manager) release(pod types.UID) {
	s := m.state.Clone()
	m.policy.Release(&s, pod)
	delete(m.made, pod)
	m.set(s)
}

// Release gives back what a pod has that is gone or was refused.
func (m *Manager) Release(pod types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.made, pod)
	if cpus, memory := has(m.state, pod); cpus || memory {
		m.release(pod)
	}
}

// Created returns the CPUs and the NUMA nodes, both as lists such as 0-3,8, of a container that is about to be created.
// Empty means all.
func (m *Manager) Created(pod types.UID, container string) (cpus, nodes string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.policy.CPU != nil {
		set, _ := m.state.CPU.Of(pod, container)
		cpus = set.String()
		if m.made[pod] == nil {
			m.made[pod] = map[string]string{}
		}
		if last, known := m.made[pod][container]; !known || last != "" {
			m.made[pod][container] = cpus
		}
	}
	return cpus, list(m.state.Memory.Nodes(pod, container))
}

// NotCreated says that the creation of a container has failed. It may have come too late for the agent: then the
// container has the CPUs of this creation or of an earlier one, also if CRI-O returns it for the next, and gets its own
// when it starts.
func (m *Manager) NotCreated(pod types.UID, container string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if made := m.made[pod]; made != nil {
		made[container] = ""
	}
}

// Starting says that a container is about to start, and records what that releases: the answer of the start may be
// lost, also together with this run of the agent.
func (m *Manager) Starting(pod *corev1.Pod, container string) {
	if m.releaseBefore(pod, container) {
		_ = m.save() // Run tries again
	}
}

// releaseBefore gives back the memory of the init containers before one that starts, and reports whether they had any.
func (m *Manager) releaseBefore(pod *corev1.Pod, container string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(pod.Spec.InitContainers) == 0 || m.state.Memory.Containers[string(pod.UID)] == nil {
		return false
	}
	s := m.state.Clone()
	if !m.policy.Starting(&s, pod, container) {
		return false
	}
	m.set(s)
	return true
}

// Started says that a container has started.
func (m *Manager) Started(pod types.UID, container string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.policy.CPU == nil {
		return
	}
	if set, _ := m.state.CPU.Of(pod, container); m.made[pod][container] != set.String() {
		m.changed.Set() // the shared pool has changed since the container was created
	}
	if m.made[pod][container] == "" {
		delete(m.made[pod], container) // the next instance has another name
	}
}

// save writes the files if the state has changed.
func (m *Manager) save() error {
	m.saving.Lock()
	defer m.saving.Unlock()
	m.mu.Lock()
	s, unsaved := m.state, m.unsaved
	m.unsaved = false
	m.mu.Unlock()
	if !unsaved {
		return nil
	}
	err := m.files.save(s)
	if err != nil {
		m.mu.Lock()
		m.unsaved = true
		m.mu.Unlock()
	}
	return err
}
