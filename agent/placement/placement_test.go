package placement_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/cpuset"

	"github.com/nodelet/nodelet/agent/placement"
	"github.com/nodelet/nodelet/agent/placement/policy"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/host/topology"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/plugins/devices"
	"github.com/nodelet/nodelet/plugins/devices/checkpoint"
)

// world is a node of four CPUs with a runtime.
type world struct {
	t        *testing.T
	settings placement.Settings
	root     string
	ended    map[types.UID]bool
	views    devices.Views
	log      bytes.Buffer
	// next is what the supervisor does after it has been asked which pods have ended.
	next func()

	mu         sync.Mutex
	containers []*runtimeapi.Container
	updates    []string
	fails      bool
	stopping   chan struct{} // if set, the update of old-app is answered when it is closed
	refused    int
	decided    int
}

func newWorld(t *testing.T) *world {
	return &world{t: t, root: t.TempDir(), ended: map[types.UID]bool{}, next: func() {}, settings: placement.Settings{
		CPUPolicy:       "static",
		ReconcilePeriod: 10 * time.Second,
		ReservedCPUs:    cpuset.New(0),
		MemoryPolicy:    "None",
		TopologyPolicy:  "none",
		TopologyScope:   "container",
		Gate:            func(string) bool { return false },
	}}
}

func (w *world) List(context.Context) ([]*runtimeapi.PodSandbox, []*runtimeapi.Container, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return nil, w.containers, nil
}

func (w *world) UpdateContainerResources(ctx context.Context, id string, r *runtimeapi.LinuxContainerResources) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.updates = append(w.updates, id+" "+r.CpusetCpus)
	if stopping := w.stopping; stopping != nil && id == "old-app" {
		w.mu.Unlock()
		defer w.mu.Lock()
		select {
		case <-stopping:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	if w.fails {
		w.fails = false
		return os.ErrDeadlineExceeded
	}
	return nil
}

// run adds a running container.
func (w *world) run(pod, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.containers = append(w.containers, &runtimeapi.Container{
		Id:    pod + "-" + name,
		State: runtimeapi.ContainerState_CONTAINER_RUNNING,
		Labels: map[string]string{
			podutil.LabelPodUID:        pod,
			podutil.LabelPodNamespace:  "default",
			podutil.LabelPodName:       pod,
			podutil.LabelContainerName: name,
		},
	})
}

// end lets a pod end.
func (w *world) end(pod types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended[pod] = true
}

// took returns the updates since the last call.
func (w *world) took() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := strings.Join(w.updates, ", ")
	w.updates = nil
	return all
}

func (w *world) Decided(_ time.Duration, refused bool, _ policy.Count) {
	w.decided++
	if refused {
		w.refused++
	}
}

func (w *world) CPUs(int, int, map[int]int) {}

func (w *world) manager() (*placement.Manager, error) {
	m := &topology.Machine{Nodes: []topology.Node{{Memory: 4 << 30}}}
	for id := range 4 {
		m.CPUs = append(m.CPUs, topology.CPU{ID: id, Core: id})
	}
	return placement.New(placement.Config{
		Root:     w.root,
		Settings: w.settings,
		Machine:  m,
		Reservation: corev1.ResourceList{
			"cpu":    resource.MustParse("1"),
			"memory": resource.MustParse("1Gi"),
		},
		Runtime: w,
		WithEnded: func(_ context.Context, f func(func(types.UID) bool)) {
			w.mu.Lock()
			defer w.mu.Unlock()
			f(func(uid types.UID) bool { return w.ended[uid] })
			w.next()
		},
		Devices: func(*corev1.Pod) devices.Views { return w.views },
		Metrics: w,
		Log:     slog.New(slog.NewTextHandler(&w.log, nil)),
	})
}

// off starts an agent on the node that has all policies off.
func (w *world) off() (*placement.Manager, error) {
	s := placement.Settings{
		CPUPolicy:      "none",
		MemoryPolicy:   "None",
		TopologyPolicy: "none",
		Gate:           func(string) bool { return false },
	}
	return placement.Open(os.DirFS("/"), placement.Config{Root: w.root, Settings: s, Metrics: w})
}

func (w *world) must() *placement.Manager {
	w.t.Helper()
	m, err := w.manager()
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

// admit admits a Guaranteed pod with one container.
func (w *world) admit(m *placement.Manager, uid, cpus string) {
	w.t.Helper()
	w.admitPod(m, guaranteed(uid, cpus))
}

func (w *world) admitPod(m *placement.Manager, pod *corev1.Pod) {
	w.t.Helper()
	record, _, refusal := m.Admit(pod)
	if refusal != nil {
		w.t.Fatal(refusal)
	}
	if record != nil {
		if err := record(); err != nil {
			w.t.Fatal(err)
		}
	}
}

func guaranteed(uid, cpus string) *corev1.Pod {
	list := corev1.ResourceList{"cpu": resource.MustParse(cpus), "memory": resource.MustParse("1Gi")}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name:      "app",
			Resources: corev1.ResourceRequirements{Requests: list, Limits: list},
		}}},
	}
}

// TestKeepsCPUsOverARestart checks that a container with CPUs of its own keeps them over a restart of the agent, and
// the shared pool gets them back when its pod has gone.
func TestKeepsCPUsOverARestart(t *testing.T) {
	w := newWorld(t)
	m := w.must()
	w.admit(m, "one", "2")
	if cpus, nodes := m.Created("one", "app"); cpus != "1-2" || nodes != "" {
		t.Errorf("got CPUs %q of nodes %q, want 1-2 of any", cpus, nodes)
	}
	m = w.must()
	if cpus, _ := m.Created("one", "app"); cpus != "1-2" {
		t.Errorf("after a restart: got CPUs %q, want 1-2", cpus)
	}
	if cpus, _ := m.Created("other", "app"); cpus != "0,3" {
		t.Errorf("shared pool: got CPUs %q, want 0,3", cpus)
	}
	_, _, refusal := m.Admit(guaranteed("two", "2"))
	if refusal == nil || refusal.Reason != "UnexpectedAdmissionError" || w.refused != 1 {
		t.Errorf("got %v, want UnexpectedAdmissionError", refusal)
	}
	if r := m.Rejection(guaranteed("two", "2")); r == nil || w.refused != 2 {
		t.Errorf("got refusal %v and %d counted, want one, the second", r, w.refused)
	}
	if m.Fits(guaranteed("two", "2")) || w.refused != 2 {
		t.Errorf("got that the pod fits, or %d refusals counted, want none but the two before", w.refused)
	}
	if r := m.Rejection(guaranteed("two", "1")); r != nil {
		t.Errorf("refusal of a pod that could get a CPU: got %v, want none", r)
	}
	if cpus, _ := m.Created("other", "app"); cpus != "0,3" {
		t.Errorf("shared pool after the question: got CPUs %q, want 0,3", cpus)
	}
	m.ReleaseEnded(func(uid types.UID) bool { return uid == "one" })
	if _, _, refusal := m.Admit(guaranteed("two", "2")); refusal != nil {
		t.Errorf("after the other pod has ended: got %v", refusal)
	}
	m.Release("two")
	if cpus, _ := m.Created("other", "app"); cpus != "0-3" {
		t.Errorf("shared pool at the end: got CPUs %q, want 0-3", cpus)
	}
	if got := m.All().CPUs; len(got) != 3 {
		t.Errorf("allocatable: got %v, want three CPUs", got)
	}
}

// TestFullDisk checks that the agent starts when it cannot write the files, keeps what they say, and writes them when
// it can: it is the agent that frees a full disk.
func TestFullDisk(t *testing.T) {
	w := newWorld(t)
	w.admit(w.must(), "one", "2")
	file, obstacle := filepath.Join(w.root, "cpu_manager_state"), filepath.Join(w.root, ".cpu_manager_state.new")
	if err := os.Mkdir(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		m, err := w.manager()
		if err != nil {
			t.Fatal(err)
		}
		if cpus, _ := m.Created("one", "app"); cpus != "1-2" {
			t.Errorf("got CPUs %q, want 1-2", cpus)
		}
		go m.Run(t.Context())
		synctest.Wait()
		m.Release("one")
		if err := os.Remove(obstacle); err != nil {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Second) // on the clock of the bubble
	})
	if content, err := os.ReadFile(file); err != nil || strings.Contains(string(content), "1-2") {
		t.Errorf("got file %s, error %v, want one without the CPUs of the pod", content, err)
	}
}

// TestAdmittedAgain checks that a static pod that comes back under its UID, just when the CPUs of its last instance are
// given back, keeps its own.
func TestAdmittedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m := w.must()
		w.admit(m, "one", "2")
		w.end("one")
		w.next = func() {
			w.next = func() {}
			w.ended["one"] = false
			w.admit(m, "one", "2")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); m.Run(ctx) }()
		time.Sleep(time.Minute)
		if cpus, _ := m.Created("one", "app"); cpus != "1-2" {
			t.Errorf("got CPUs %q, want 1-2", cpus)
		}
		cancel()
		<-done
	})
}

// TestPolicyTurnedOn checks that pods that were admitted before there was a policy get CPUs of their own when the agent
// starts with one, as with the kubelet. What they have stays, and a pod that cannot get any goes on without.
func TestPolicyTurnedOn(t *testing.T) {
	w := newWorld(t)
	m := w.must()
	for range 2 {
		m.Resume(guaranteed("small", "2"))
		m.Resume(guaranteed("large", "2"))
		m.Resume(guaranteed("shared", "500m"))
	}
	for _, c := range []struct{ pod, want string }{{"small", "1-2"}, {"large", "0,3"}, {"shared", "0,3"}} {
		if cpus, _ := m.Created(types.UID(c.pod), "app"); cpus != c.want {
			t.Errorf("pod %s: got CPUs %q, want %q", c.pod, cpus, c.want)
		}
		pod := guaranteed(c.pod, "2")
		if got, want := m.HasCPUs(pod, &pod.Spec.Containers[0]), c.pod == "small"; got != want {
			t.Errorf("pod %s has CPUs for itself: got %t, want %t", c.pod, got, want)
		}
	}
}

// TestSecondPolicyTurnedOn checks that a pod that has memory of its own gets CPUs too when that policy is turned on,
// and keeps the memory.
func TestSecondPolicyTurnedOn(t *testing.T) {
	w := newWorld(t)
	w.settings.CPUPolicy, w.settings.MemoryPolicy = "none", "Static"
	w.settings.ReservedMemory = []config.NUMAMemory{
		{Limits: corev1.ResourceList{"memory": resource.MustParse("1Gi")}}}
	pod := guaranteed("one", "2")
	w.admitPod(w.must(), pod)
	w.settings.CPUPolicy = "static"
	m := w.must()
	m.Resume(pod)
	if cpus, nodes := m.Created("one", "app"); cpus != "1-2" || nodes != "0" {
		t.Errorf("got CPUs %q of nodes %q, want 1-2 of 0", cpus, nodes)
	}
	if got, want := blocksText(m.OfContainer(pod, &pod.Spec.Containers[0]).Memory), "memory 1073741824 on 0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestNothingToResume checks that a pod which has what it asks for is not admitted again when the agent starts: the
// memory that an init container has passed on may be another pod's.
func TestNothingToResume(t *testing.T) {
	w := newWorld(t)
	w.settings.MemoryPolicy = "Static"
	w.settings.ReservedMemory = []config.NUMAMemory{
		{Limits: corev1.ResourceList{"memory": resource.MustParse("1Gi")}}}
	pod := guaranteed("one", "500m")
	first := *pod.Spec.Containers[0].DeepCopy()
	first.Name = "first"
	first.Resources.Requests["memory"] = resource.MustParse("3Gi")
	first.Resources.Limits = first.Resources.Requests
	pod.Spec.InitContainers = []corev1.Container{first}
	m := w.must()
	w.admitPod(m, pod)
	m.Starting(pod, "app")
	w.admit(m, "two", "500m")
	m = w.must()
	m.Resume(pod)
	if w.log.Len() > 0 {
		t.Errorf("got the log %s, want none: the pod asks for no CPUs", &w.log)
	}
	if got, want := blocksText(m.OfContainer(pod, &pod.Spec.Containers[0]).Memory), "memory 1073741824 on 0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestStrictReservation checks that the agent starts again when containers have all CPUs that are not strictly
// reserved.
func TestStrictReservation(t *testing.T) {
	w := newWorld(t)
	w.settings.CPUOptions = map[string]string{"strict-cpu-reservation": "true"}
	w.admit(w.must(), "all", "3")
	m := w.must()
	if cpus, _ := m.Created("all", "app"); cpus != "1-3" {
		t.Errorf("after a restart: got CPUs %q, want 1-3", cpus)
	}
	m.Release("all")
	w.admit(m, "next", "1")
}

// TestUnknownNodes checks that NUMA nodes that a device plugin reports and the machine does not have neither keep the
// agent busy nor a pod out.
func TestUnknownNodes(t *testing.T) {
	w := newWorld(t)
	w.settings.TopologyPolicy = "restricted"
	view := devices.View{All: map[string][]int64{"d1": nil}, Free: []string{"d1"}}
	for node := range int64(64) {
		view.All["d1"] = append(view.All["d1"], node)
	}
	w.views = devices.Views{"nodelet.test/fake": view}
	pod := guaranteed("one", "1")
	pod.Spec.Containers[0].Resources.Limits = maps.Clone(pod.Spec.Containers[0].Resources.Limits)
	pod.Spec.Containers[0].Resources.Limits["nodelet.test/fake"] = resource.MustParse("1")
	w.admitPod(w.must(), pod)
}

// TestDevicesByClaim checks that a pod gets CPUs of its own although the plugin of a resource that it has by a claim
// has no devices left.
func TestDevicesByClaim(t *testing.T) {
	const byClaim, byPlugin = "nodelet.test/claim", "nodelet.test/plugin"
	w := newWorld(t)
	entries := []checkpoint.PodDevicesEntry{{PodUID: "one", ContainerName: "app", ResourceName: byPlugin,
		DeviceIDs: checkpoint.DevicesPerNUMA{checkpoint.WithoutNUMA: {"d1"}}}}
	text, err := checkpoint.Marshal(entries, map[string][]string{byClaim: {"d1"}, byPlugin: {"d1"}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(w.root, "device-plugins", "kubelet_internal_checkpoint")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	plugins, err := devices.New(devices.Config{Root: w.root, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	pod := guaranteed("one", "1")
	limits := pod.Spec.Containers[0].Resources.Limits
	limits[byClaim], limits[byPlugin] = resource.MustParse("1"), resource.MustParse("1")
	pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
		RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "app", ResourceName: byClaim}},
	}
	w.views = plugins.Views(pod)
	w.admitPod(w.must(), pod)
}

// TestPodResources checks what the pod resources API says of a pod with resources of its own: the pod has all of them,
// a container without a whole number of CPUs has nothing for itself.
func TestPodResources(t *testing.T) {
	w := newWorld(t)
	w.settings.MemoryPolicy = "Static"
	w.settings.ReservedMemory = []config.NUMAMemory{
		{Limits: corev1.ResourceList{"memory": resource.MustParse("1Gi")}}}
	w.settings.TopologyPolicy, w.settings.TopologyScope = "best-effort", "pod"
	w.settings.Gate = func(name string) bool { return name == "PodLevelResourceManagers" }
	m := w.must()
	pod := guaranteed("whole", "1")
	all := corev1.ResourceList{"cpu": resource.MustParse("3"), "memory": resource.MustParse("2Gi")}
	pod.Spec.Resources = &corev1.ResourceRequirements{Requests: all, Limits: all}
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "shared"})
	w.admitPod(m, pod)
	own, shared := &pod.Spec.Containers[0], &pod.Spec.Containers[1]
	gib := func(n uint64) string { return fmt.Sprintf("memory %d on 0", n<<30) }
	for _, c := range []struct {
		what, memory string
		cpus         []int64
		got          []*podresources.ContainerMemory
		want         int
	}{
		{"the pod", gib(2), m.OfPod("whole").CPUs, m.OfPod("whole").Memory, 3},
		{"a container with one CPU", gib(1), m.OfContainer(pod, own).CPUs, m.OfContainer(pod, own).Memory, 1},
		{"a container that shares the rest", "", m.OfContainer(pod, shared).CPUs, m.OfContainer(pod, shared).Memory, 0},
		{"another pod", "", m.OfPod("other").CPUs, m.OfPod("other").Memory, 0},
	} {
		if got := blocksText(c.got); len(c.cpus) != c.want || got != c.memory {
			t.Errorf("%s: got CPUs %v and memory %q, want %d CPUs and %q", c.what, c.cpus, got, c.want, c.memory)
		}
	}
	if !m.HasCPUs(pod, own) || m.HasCPUs(pod, shared) {
		t.Error("got CPUs for the sharing container alone, want some for the other one alone")
	}
	if cpus, _ := m.Created("whole", "shared"); cpus == "" || strings.Contains(cpus, "0") {
		t.Errorf("the sharing container runs on the CPUs %q, want those that the pod has left", cpus)
	}
}

// TestMemoryInPodScope checks that the containers of a pod get memory when they are aligned together.
func TestMemoryInPodScope(t *testing.T) {
	w := newWorld(t)
	w.settings.MemoryPolicy = "Static"
	w.settings.ReservedMemory = []config.NUMAMemory{
		{Limits: corev1.ResourceList{"memory": resource.MustParse("1Gi")}}}
	w.settings.TopologyPolicy, w.settings.TopologyScope = "best-effort", "pod"
	m := w.must()
	pod := guaranteed("aligned", "1")
	pod.Spec.InitContainers = []corev1.Container{pod.Spec.Containers[0]}
	pod.Spec.InitContainers[0].Name = "first"
	w.admitPod(m, pod)
	got, want := blocksText(m.OfContainer(pod, &pod.Spec.Containers[0]).Memory), fmt.Sprintf("memory %d on 0", 1<<30)
	if got != want {
		t.Errorf("got memory %q, want %q", got, want)
	}
}

// TestMemoryOfInitContainers checks that the memory of an init container is free once the next container starts, also
// for an agent that starts then, because this one has died.
func TestMemoryOfInitContainers(t *testing.T) {
	w := newWorld(t)
	w.settings.MemoryPolicy = "Static"
	w.settings.ReservedMemory = []config.NUMAMemory{
		{Limits: corev1.ResourceList{"memory": resource.MustParse("1Gi")}}}
	pod := guaranteed("one", "1")
	pod.Spec.InitContainers = []corev1.Container{pod.Spec.Containers[0]}
	pod.Spec.InitContainers[0].Name = "first"
	m := w.must()
	w.admitPod(m, pod)
	for _, c := range []struct {
		starts string
		want   int
	}{{"first", 1}, {"app", 0}} {
		m.Starting(pod, c.starts)
		for when, m := range map[string]*placement.Manager{"this agent": m, "the next one": w.must()} {
			if got := m.OfContainer(pod, &pod.Spec.InitContainers[0]).Memory; len(got) != c.want {
				t.Errorf("%s, when %s starts: got memory %q, want %d", when, c.starts, blocksText(got), c.want)
			}
		}
	}
}

func blocksText(all []*podresources.ContainerMemory) string {
	var out []string
	for _, b := range all {
		text := fmt.Sprintf("%s %d on", b.MemoryType, b.Size)
		for _, n := range b.Topology.Nodes {
			text += fmt.Sprintf(" %d", n.ID)
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// TestReconcile checks that containers that run in the shared pool follow its changes, once each.
func TestReconcile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m := w.must()
		ctx, cancel := context.WithCancel(t.Context())
		go m.Run(ctx)
		synctest.Wait()
		m.Created("burst", "app")
		w.run("burst", "app")
		w.run("old", "app") // of an earlier run of the agent
		w.run("", "")       // of no pod: another client of the runtime made it
		w.admit(m, "one", "1")
		synctest.Wait()
		if got, want := w.took(), "burst-app 0,2-3, old-app 0,2-3"; got != want {
			t.Errorf("after a pod was admitted: got updates %q, want %q", got, want)
		}
		m.Created("one", "app")
		w.run("one", "app")
		m.Started("one", "app")
		w.fails = true
		w.admit(m, "two", "1")
		synctest.Wait()
		if got, want := w.took(), "burst-app 0,3, old-app 0,3"; got != want {
			t.Errorf("after a second pod: got updates %q, want %q", got, want)
		}
		time.Sleep(11 * time.Second) // on the clock of the bubble
		if got, want := w.took(), "burst-app 0,3"; got != want {
			t.Errorf("after a failed call: got updates %q, want %q", got, want)
		}
		w.end("two")
		time.Sleep(11 * time.Second)
		if got, want := w.took(), "burst-app 0,2-3, old-app 0,2-3"; got != want {
			t.Errorf("after a pod has ended: got updates %q, want %q", got, want)
		}
		cancel()
		synctest.Wait()
	})
}

// TestEmptySharedPool checks that the log says once that the shared pool is empty, and who uses the CPUs of others
// meanwhile, and says it again when that happens again.
func TestEmptySharedPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.settings.CPUOptions = map[string]string{"strict-cpu-reservation": "true"}
		m := w.must()
		ctx, cancel := context.WithCancel(t.Context())
		go m.Run(ctx)
		check := func(when string, want ...string) {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			var got []string
			for line := range strings.Lines(w.log.String()) {
				_, pods, _ := strings.Cut(line, "pods=")
				got = append(got, strings.Trim(pods, "\"\n"))
			}
			if w.log.Reset(); !slices.Equal(got, want) {
				t.Errorf("%s: got warnings of the pods %q, want %q", when, got, want)
			}
		}
		w.admit(m, "big", "3")
		w.run("big", "app")
		check("nothing runs in the pool")
		w.took()
		for _, name := range []string{"app", "helper"} {
			m.Created("burst", name)
			w.run("burst", name)
			m.Started("burst", name)
		}
		w.run("old", "app")
		check("empty", "[default/burst default/old]")
		check("still empty")
		w.mu.Lock()
		w.containers = w.containers[1:]
		w.mu.Unlock()
		w.end("big")
		check("has CPUs again")
		if got, want := w.took(), "burst-app 1-3, burst-helper 1-3, old-app 1-3"; got != want {
			t.Errorf("got updates %q, want %q", got, want)
		}
		w.admit(m, "next", "3")
		check("empty again", "[default/burst default/old]")
		cancel()
		synctest.Wait()
	})
}

// TestReconcileWhileStopping checks that no container waits long for the update of another one that the runtime
// answers when that has stopped, and that a container has one such call at a time, the next one right after it.
func TestReconcileWhileStopping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m := w.must()
		ctx, cancel := context.WithCancel(t.Context())
		w.stopping = make(chan struct{})
		w.run("old", "app")
		w.run("burst", "app")
		w.admit(m, "one", "1")
		ended := make(chan struct{})
		go func() { defer close(ended); m.Run(ctx) }()
		time.Sleep(5 * time.Second)
		if got, want := w.took(), "old-app 0,2-3, burst-app 0,2-3"; got != want {
			t.Errorf("after a pod was admitted: got updates %q, want %q", got, want)
		}
		w.admit(m, "two", "1")
		time.Sleep(25 * time.Second)
		if got, want := w.took(), "burst-app 0,3"; got != want {
			t.Errorf("after a second pod: got updates %q, want %q", got, want)
		}
		close(w.stopping)
		synctest.Wait()
		if got, want := w.took(), "old-app 0,3"; got != want {
			t.Errorf("after the answer: got updates %q, want %q", got, want)
		}
		w.mu.Lock()
		w.stopping = make(chan struct{})
		w.mu.Unlock()
		w.end("two")
		time.Sleep(25 * time.Second)
		cancel()
		<-ended
	})
}

// TestLateCreation checks that a container gets its CPUs when it starts, if the runtime has created it with others too
// late for the agent, and then refused a second creation, as containerd does, or returned that container, as CRI-O
// does.
func TestLateCreation(t *testing.T) {
	for _, refused := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			m := w.must()
			ctx, cancel := context.WithCancel(t.Context())
			go m.Run(ctx)
			m.Created("burst", "app")
			m.NotCreated("burst", "app")
			w.admit(m, "one", "1")
			m.Created("burst", "app")
			if refused {
				m.NotCreated("burst", "app")
			}
			synctest.Wait()
			w.run("burst", "app")
			m.Started("burst", "app")
			synctest.Wait()
			if got, want := w.took(), "burst-app 0,2-3"; got != want {
				t.Errorf("second creation refused=%v: got updates %q, want %q", refused, got, want)
			}
			cancel()
			synctest.Wait()
		})
	}
}

// TestRefusesFiles checks that a file that is damaged, or that another policy has written, stops the agent with the
// kubelet's advice.
func TestRefusesFiles(t *testing.T) {
	w := newWorld(t)
	w.admit(w.must(), "one", "1")
	file := filepath.Join(w.root, "cpu_manager_state")
	if _, err := w.off(); err == nil || !strings.Contains(err.Error(), "please drain this node") {
		t.Errorf("policy none after static: got %v", err)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(content[:len(content)-3], "7}"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.manager(); err == nil || !strings.Contains(err.Error(), "delete the checkpoint file") {
		t.Errorf("damaged file: got %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	none, err := w.off()
	if err != nil {
		t.Fatalf("without a file: got %v", err)
	}
	w.decided = 0
	if record, affinity, refusal := none.Admit(guaranteed("two", "9")); record != nil || len(affinity) > 0 ||
		refusal != nil {
		t.Errorf("policy none: got %v, %v, want a pod that is admitted and gets nothing", affinity, refusal)
	}
	if w.decided != 1 {
		t.Errorf("policy none: counted %d admissions, want 1, as in the kubelet", w.decided)
	}
	if cpus, nodes := none.Created("two", "app"); cpus != "" || nodes != "" {
		t.Errorf("policy none: got CPUs %q and nodes %q, want no restriction", cpus, nodes)
	}
}

// TestReservedCPUsExist checks that the reserved CPUs have to be online, also with all policies off.
func TestReservedCPUsExist(t *testing.T) {
	s := placement.Settings{
		CPUPolicy:      "none",
		MemoryPolicy:   "None",
		TopologyPolicy: "none",
		ReservedCPUs:   cpuset.New(0, 4095),
	}
	_, err := placement.Open(os.DirFS("/"), placement.Config{Root: t.TempDir(), Settings: s})
	if want := "reservedSystemCPUs: CPUs 4095 are not online"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an error with %q", err, want)
	}
}

func TestSettings(t *testing.T) {
	w := newWorld(t)
	w.settings.MemoryPolicy = "Static"
	for want, limits := range map[string]string{"is not equal to the value": "2Gi", "": "1Gi"} {
		w.root = t.TempDir()
		w.settings.ReservedMemory = []config.NUMAMemory{{
			Limits: corev1.ResourceList{"memory": resource.MustParse(limits)},
		}}
		m, err := w.manager()
		switch {
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: got %v, want an error with %q", limits, err, want)
		case want == "" && err != nil:
			t.Errorf("%s: got %v", limits, err)
		case want == "":
			w.admit(m, "one", "1")
			if _, nodes := m.Created("one", "app"); nodes != "0" || len(m.All().Memory) != 1 {
				t.Errorf("got memory of nodes %q, allocatable %v", nodes, m.All().Memory)
			}
		}
	}
	w = newWorld(t)
	w.settings.TopologyPolicy = "restricted"
	for want, options := range map[string]map[string]string{
		"unknown Topology Manager Policy option": {"fast": "true"},
		"at least 8":                             {"max-allowable-numa-nodes": "4"},
		"needs the distances":                    {"prefer-closest-numa-nodes": "true"},
	} {
		w.settings.TopologyOptions = options
		if _, err := w.manager(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want an error with %q", options, err, want)
		}
	}
}
