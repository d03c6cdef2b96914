package agent_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/admission"
	"github.com/nodelet/nodelet/agent/execute"
	"github.com/nodelet/nodelet/agent/instruments"
	"github.com/nodelet/nodelet/agent/placement"
	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/agent/podcgroups"
	"github.com/nodelet/nodelet/agent/podprobes"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/cri/images"
	"github.com/nodelet/nodelet/cri/logs"
	"github.com/nodelet/nodelet/host/userns"
	"github.com/nodelet/nodelet/internal/trace"
	"github.com/nodelet/nodelet/kube/objects"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/pods"
	"github.com/nodelet/nodelet/kube/status"
	"github.com/nodelet/nodelet/metrics/exporter"
	"github.com/nodelet/nodelet/plugins/devices"
	"github.com/nodelet/nodelet/plugins/dra"
	"github.com/nodelet/nodelet/probes"
	"github.com/nodelet/nodelet/test/cri/fake"
	"github.com/nodelet/nodelet/test/placementtest"
	"github.com/nodelet/nodelet/volumes"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// world is a node in a synctest bubble: a container runtime and a disk, which stay when the agent ends, the pods of its
// sources, and one run of the agent after the other. All packages but the publisher of statuses are real, and the node
// has no API server.
type world struct {
	// lostDeletes is how many of the agent's final deletes will be lost.
	lostDeletes int

	t       *testing.T
	runtime *fake.Runtime
	root    string
	agent   *agentRun
	// amnesia: the statuses that a run of the agent has published are lost when it ends.
	amnesia bool
	// noUserNamespaces: the runtime's handler does not support user namespaces.
	noUserNamespaces bool
	// noImageSubPath is why the runtime cannot mount a subPath of an image volume.
	noImageSubPath string
	// recursive is the name of the handler that supports recursive read-only mounts.
	recursive string
	// classes are the runtime classes of the cluster.
	classes classReads
	// devices replaces the devices of device plugins, of which there are none; may be nil.
	devices deviceBackend
	// placement gives CPUs and memory to pods; nil: it does not.
	placement agent.Placement
	// claims prepares resource claims; nil: there are none.
	claims claimBackend
	// clockMoved is by how much the wall clock is ahead of the time that has passed, in nanoseconds.
	clockMoved atomic.Int64
	// tracer samples what is done for pods; nil for no traces.
	tracer *trace.Tracer
	// quiet: nothing is logged.
	quiet bool
	// podFiles wraps the directories of the pods as the supervisor and the workers see them; may be nil.
	podFiles func(agent.PodFiles) agent.PodFiles

	mu     sync.Mutex
	set    pods.Set
	events []string
	// logged is everything that was logged, at all levels.
	logged strings.Builder
	// nodeObject returns the Node object; nil for none. nodeSeen is closed when it is known.
	nodeObject func() *corev1.Node
	nodeSeen   <-chan struct{}
	// refreshNode is called when the Node object is to be read again.
	refreshNode func()
	// allocatable are the resources that pods of the node may use.
	allocatable corev1.ResourceList
	// grown are the allocatable resources of the node once they have changed, hostIPs its addresses.
	grown   atomic.Pointer[corev1.ResourceList]
	hostIPs atomic.Pointer[[]string]
	// noDNS: the DNS settings of the node have never been read.
	noDNS atomic.Bool
	// refusal is what the node refuses new pods and resizes for now; it may be nil.
	refusal atomic.Pointer[podstate.Rejection]
	// doomed is Config.BegunEviction of the next run of the agent.
	doomed func(*corev1.Pod) *agent.Eviction
	// ids are the IDs of the host for pods with a user namespace of their own; zero for all.
	ids userns.Range
	// delayed is how long pulls and init containers have delayed the pod that has started last.
	delayed atomic.Int64
	// ends is how many ends of containers were counted.
	ends atomic.Int64
	// synced are the kinds of the syncs that were counted.
	synced sync.Map
	// probedAt is the address at which a pod was to be probed last.
	probedAt atomic.Pointer[string]
	// lacking: something may be missing in the objects of the pod whose objects were set last.
	lacking atomic.Bool
}

// probeLog notes the addresses of the pods that are probed.
type probeLog struct {
	*podprobes.Probes
	w *world
}

func (l *probeLog) Set(pod *corev1.Pod, address string, targets []plan.ProbeTarget) {
	l.w.probedAt.Store(&address)
	l.Probes.Set(pod, address, targets)
}

// startLog notes what has delayed the start of pods and the kinds of syncs, and counts the ends of containers.
type startLog struct {
	*instruments.Metrics
	w *world
}

func (l startLog) Ended(pod *corev1.Pod, container string, end *corev1.ContainerStateTerminated) {
	l.w.ends.Add(1)
	l.Metrics.Ended(pod, container, end)
}

func (l startLog) Synced(kind string, took time.Duration) {
	l.w.synced.Store(kind, true)
	l.Metrics.Synced(kind, took)
}

func (l startLog) Running(_ *corev1.Pod, _ time.Time, delayed time.Duration) {
	l.w.delayed.Store(int64(delayed))
}

// deviceBackend is both sides of the devices of device plugins.
type deviceBackend interface {
	agent.Devices
	execute.Devices
}

// claimBackend is both sides of resource claims.
type claimBackend interface {
	agent.Claims
	execute.Claims
}

// agentRun is one run of the agent on the node.
type agentRun struct {
	*agent.Supervisor
	cancel  context.CancelFunc
	running sync.WaitGroup
	runtime *cri.Client
	status  *statuses
	objects *objects.Local
	// exporter serves its metrics.
	exporter *exporter.Exporter
}

// inWorld runs a test on a node whose agent has just started.
func inWorld(t *testing.T, test func(t *testing.T, w *world)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.begin()
		test(t, w)
	})
}

// newWorld returns a node with an idle runtime that has the image busybox:1.
func newWorld(t *testing.T) *world {
	w := &world{t: t, runtime: fake.New(), root: t.TempDir()}
	seen := make(chan struct{})
	close(seen)
	w.nodeObject, w.nodeSeen = func() *corev1.Node { return nil }, seen
	w.refreshNode = func() {}
	w.allocatable = corev1.ResourceList{
		"cpu": resource.MustParse("4"), "memory": resource.MustParse("4Gi"), "pods": resource.MustParse("110"),
	}
	w.set = pods.Set{Pods: map[types.UID]*corev1.Pod{}, Synced: true}
	w.runtime.AddImage(fake.RemoteImage{Name: "busybox:1"})
	w.runtime.Start()
	t.Cleanup(func() {
		w.end()
		w.runtime.Close()
		w.unmount()
	})
	return w
}

// keepVolume makes a directory of a volume that is not mounted and has a file, which keeps the agent from removing it.
func (w *world) keepVolume(pod *corev1.Pod) {
	w.t.Helper()
	if err := os.MkdirAll(w.path("pods/"+string(pod.UID)+"/volumes/kubernetes.io~nfs/data/precious"), 0o755); err != nil {
		w.t.Fatal(err)
	}
}

// unmount removes the mounts that a failed test has left.
func (w *world) unmount() {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(w.root))
	if err != nil {
		w.t.Error(err)
	}
	for _, m := range slices.Backward(mounts) {
		w.t.Errorf("left mounted: %s", m.Mountpoint)
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil {
			w.t.Error(err)
		}
	}
}

// plainPulls pulls all images side by side, without credentials of the node.
func plainPulls(log *slog.Logger) images.Config {
	return images.Config{
		Providers: func(context.Context, *corev1.Pod, string) ([]images.Provided, []string) { return nil, nil },
		Wanted:    func(string) {},
		Pulled:    func() {},
		Log:       log,
	}
}

// begin starts the agent.
func (w *world) begin() {
	w.t.Helper()
	log := w.newLog()
	client, err := cri.Dial("unix:///run/fake.sock", cri.Options{Log: log, Connect: w.runtime.Connect})
	if err != nil {
		w.t.Fatal(err)
	}
	dirs, err := podfs.New(podfs.Config{Log: log, Root: w.root})
	if err != nil {
		w.t.Fatal(err)
	}
	placed := placementtest.Off()
	l := &agentRun{runtime: client, exporter: exporter.New("node")}
	metrics := instruments.New(l.exporter)
	mounts, err := volumes.New(volumes.Config{
		Root:     w.root,
		NodeName: "node",
		Log:      log,
		Pods:     dirs,
		Metrics:  metrics,
		InUse:    func([]corev1.UniqueVolumeName) {},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	l.objects = objects.NewLocal(nil, func(uids []types.UID) { l.ObjectsChanged(uids) })
	l.status = &statuses{world: w, known: map[types.UID]corev1.PodStatus{}}
	first := w.node()
	node := func() *spec.Node {
		now := *first
		if ips := w.hostIPs.Load(); ips != nil {
			now.HostIPs = *ips
		}
		if list := w.grown.Load(); list != nil {
			now.Allocatable = *list
		}
		return &now
	}
	tree, err := logs.NewTree(w.path("logs"), w.path("links"))
	if err != nil {
		w.t.Fatal(err)
	}
	var devicePlugins deviceBackend = w.devices
	if w.devices == nil {
		if devicePlugins, err = devices.New(devices.Config{
			Log: log, Root: w.root, Exclusive: placed, Changed: func() {},
		}); err != nil {
			w.t.Fatal(err)
		}
	}
	resourceClaims := w.claims
	if resourceClaims == nil {
		if resourceClaims, err = dra.New(dra.Config{Root: w.root, Log: log}); err != nil {
			w.t.Fatal(err)
		}
	}
	prober := probes.New(probes.Config{
		Exec:    client.Output,
		Changed: func(pod types.UID, _ probes.Status) { l.ProbeChanged(pod) },
		Attempt: func(pod types.UID, a probes.Attempt) {
			l.exporter.ProbeAttempted(pod, a)
			if a.Reason != "" {
				l.ProbeFailed(pod, a.Container, a.Reason, a.Message)
			}
		},
	})
	events := status.NewRecorder(status.RecorderConfig{Log: log})
	steps := execute.New(execute.Backends{
		Runtime:        client,
		Images:         images.New(client, plainPulls(log)),
		Volumes:        mounts,
		PodFiles:       dirs,
		Logs:           tree,
		Cgroups:        podcgroups.None{},
		Devices:        devicePlugins,
		Placement:      placed,
		Claims:         resourceClaims,
		UserNamespaces: w.userNS(dirs),
		Objects:        func(*corev1.Pod) execute.Objects { return classObjects{l.objects, &w.classes} },
		Events:         events,
		Metrics:        metrics,
		Node:           node,
		FreshNode: func() (*spec.Node, error) {
			if w.noDNS.Load() {
				return nil, errors.New("there are no DNS settings")
			}
			return node(), nil
		},
		HandlerFeatures: func(handler string) *runtimeapi.RuntimeHandlerFeatures {
			return &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: !w.noUserNamespaces,
				RecursiveReadOnlyMounts: handler == w.recursive}
		},
		NoImageSubPath: func() string { return w.noImageSubPath },
		Working:        func() {},
	})
	var podFiles agent.PodFiles = dirs
	if w.podFiles != nil {
		podFiles = w.podFiles(dirs)
	}
	l.Supervisor = agent.NewSupervisor(agent.Config{
		Backends: agent.Backends{
			Runtime:       client,
			Steps:         steps,
			PodFiles:      podFiles,
			Logs:          tree,
			Volumes:       mounts,
			Cgroups:       podcgroups.None{},
			Devices:       devicePlugins,
			Placement:     cmp.Or[agent.Placement](w.placement, placed),
			AllocatedPods: placement.AllocatedPods(w.root),
			Claims:        resourceClaims,
			Probes:        &probeLog{podprobes.New(prober), w},
			Objects:       func(*corev1.Pod) agent.Objects { return useLog{l.objects, w} },
			Status:        l.status,
			Events:        events,
			Metrics:       startLog{metrics, w},
			Tracer:        w.tracer,
		},
		Node:         node,
		NodeSeen:     w.nodeSeen,
		Clock:        func() time.Time { return time.Now().Round(0).Add(time.Duration(w.clockMoved.Load())) },
		Uptime:       func() time.Duration { return time.Since(time.Unix(0, 0)) }, // the clock of the test is never set
		RefreshNode:  func(context.Context) { w.refreshNode() },
		RuntimeName:  func() string { return "containerd" },
		BackoffFirst: 10 * time.Second,
		BackoffMax:   5 * time.Minute,
		Admit: func(pod *corev1.Pod, others []*corev1.Pod) admission.Decision {
			return admission.Admit(pod, admission.Node{
				Object:      w.nodeObject(),
				Allocatable: first.Allocatable,
				Device:      func(string) bool { return false },
				Volume:      podfs.Supported,
				AppArmor:    true,
			}, others)
		},
		Rejection: func(*corev1.Pod) *podstate.Rejection { return w.refusal.Load() },
		BegunEviction: func(pod *corev1.Pod) *agent.Eviction {
			if w.doomed == nil {
				return nil
			}
			return w.doomed(pod)
		},
		Waiting:        func() error { return nil },
		NetworkProblem: func(types.UID) string { return "" },
		PodGone:        func() {},
		RuntimeListed:  func() {},
		Log:            log,
	})
	var ctx context.Context
	ctx, l.cancel = context.WithCancel(w.t.Context())
	l.running.Go(func() { prober.Run(ctx) })
	l.running.Go(func() { l.Run(ctx) })
	w.agent = l
	w.deliver()
	synctest.Wait()
}

func (w *world) newLog() *slog.Logger {
	if w.quiet {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(logbook{slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}), w})
}

// userNS returns the table of user namespaces, with those that an earlier run of the agent has allocated.
func (w *world) userNS(dirs *podfs.FS) *userns.Table {
	uids, err := dirs.Pods()
	if err != nil {
		w.t.Fatal(err)
	}
	table, bad, err := userns.New(userns.Config{
		IDsPerPod: userns.Unit,
		Pool:      w.ids,
		Files:     dirs,
	}, uids)
	if err != nil || len(bad) > 0 {
		w.t.Fatal(err, bad)
	}
	return table
}

func (w *world) node() *spec.Node {
	return &spec.Node{
		HostIPs:     []string{"192.0.2.1"},
		PodLogsDir:  w.path("logs"),
		PodsDir:     w.path("pods"),
		NodeDNS:     spec.NodeDNS{NoResolvConf: true},
		Cgroups:     spec.Cgroups{Flat: true},
		Limits:      spec.Limits{CPUCFSQuota: true},
		Allocatable: w.allocatable,
	}
}

// end ends the agent as a kill does: its calls are cancelled, and its memory is lost. The API server keeps the statuses
// that the agent has sent.
func (w *world) end() {
	l := w.agent
	if l == nil {
		return
	}
	w.agent = nil
	l.cancel()
	l.running.Wait()
	if err := l.runtime.Close(); err != nil {
		w.t.Error(err)
	}
	synctest.Wait()
	if !w.amnesia {
		w.publish(l)
	}
}

// publish copies the newest statuses of a run of the agent to the pods of the API server.
func (w *world) publish(l *agentRun) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid, pod := range w.set.Pods {
		if st, known := l.status.newest(uid); known {
			next := *pod
			next.Status = st
			w.set.Pods[uid] = &next
		}
	}
}

// restart ends the agent and starts it again.
func (w *world) restart() {
	w.end()
	w.begin()
}

// change changes the set of the sources and sends it to the agent.
func (w *world) change(f func(set *pods.Set)) {
	w.mu.Lock()
	f(&w.set)
	w.mu.Unlock()
	w.deliver()
}

// deliver sends the newest set to the agent. A set that was sent is not changed any more.
func (w *world) deliver() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.agent == nil {
		return
	}
	set := w.set
	set.Pods = maps.Clone(set.Pods)
	w.agent.objects.Set(set.ConfigMaps, set.Secrets)
	w.agent.Want(&set)
}

// run adds pods to the set, or replaces their older versions.
func (w *world) run(all ...*corev1.Pod) {
	w.change(func(set *pods.Set) {
		for _, pod := range all {
			set.Pods[pod.UID] = pod
		}
	})
}

// remove removes a pod from the set: its manifest or its API object is gone.
func (w *world) remove(uid types.UID) { w.change(func(set *pods.Set) { delete(set.Pods, uid) }) }

// statuses keeps the statuses that a publisher would send; final deletes go to the world.
type statuses struct {
	world *world

	mu    sync.Mutex
	known map[types.UID]corev1.PodStatus
}

func (s *statuses) Set(pod *corev1.Pod, want corev1.PodStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.known[pod.UID]
	if !ok {
		last = pod.Status
	}
	s.known[pod.UID], _ = status.Settle(pod, &last, want)
}

func (s *statuses) SetGone(pod *corev1.Pod, last corev1.PodStatus) {
	if podutil.IsMirror(pod) || pod.DeletionTimestamp == nil {
		s.Set(pod, last)
		return
	}
	if !podutil.IsTerminal(last.Phase) {
		s.world.t.Errorf("last status of pod %s: got phase %s, want a terminal one", pod.Name, last.Phase)
	}
	s.Forget(pod.UID)
	go s.world.finalDelete(pod.UID)
}

func (s *statuses) Forget(pod types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, pod)
}

// newest returns the status of the last Set; false for an unknown pod.
func (s *statuses) newest(pod types.UID) (corev1.PodStatus, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, known := s.known[pod]
	return st, known
}

// finalDelete is the agent's own delete. The first lostDeletes of them have no effect.
func (w *world) finalDelete(uid types.UID) {
	w.mu.Lock()
	lost := w.lostDeletes > 0
	if lost {
		w.lostDeletes--
	}
	w.mu.Unlock()
	if !lost {
		w.remove(uid)
	}
}

// left returns how many pods the sources have, and how many final deletes will be lost.
func (w *world) left() (pods, lostDeletes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.set.Pods), w.lostDeletes
}

// delete sets the deletion timestamp and grace period of a pod, as the API server does.
func (w *world) delete(pod *corev1.Pod, grace time.Duration) {
	w.change(func(set *pods.Set) {
		if p := set.Pods[pod.UID]; p != nil {
			set.Pods[pod.UID] = deleted(p, grace)
		}
	})
}

// sleep waits for d and then until all goroutines block.
func (w *world) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *world) status(pod *corev1.Pod) corev1.PodStatus {
	st, _ := w.agent.status.newest(pod.UID)
	return st
}

// running returns pod, name and attempt of the running containers, in the order of their creation.
func (w *world) running() []string {
	var all []string
	for _, c := range w.runtime.Containers() {
		if c.State == running {
			all = append(all, fmt.Sprintf("%s/%s#%d", c.Labels[podutil.LabelPodName], c.Metadata.Name, c.Metadata.Attempt))
		}
	}
	return all
}

// checkRunning checks that these containers run, and no others.
func (w *world) checkRunning(want ...string) {
	w.t.Helper()
	if got := w.running(); !slices.Equal(got, want) {
		w.t.Errorf("running: got %v, want %v", got, want)
	}
}

// checkNothingLeft checks that nothing of any pod is left in the runtime or on the disk.
func (w *world) checkNothingLeft() {
	w.t.Helper()
	for _, s := range w.runtime.Sandboxes() {
		w.t.Errorf("left over: sandbox %s#%d, %s", s.Metadata.Name, s.Metadata.Attempt, s.State)
	}
	for _, c := range w.runtime.Containers() {
		w.t.Errorf("left over: container %s#%d, %s", c.Metadata.Name, c.Metadata.Attempt, c.State)
	}
	for _, dir := range []string{"pods", "logs", "links"} {
		entries, err := os.ReadDir(w.path(dir))
		if err != nil && !os.IsNotExist(err) {
			w.t.Error(err)
		}
		for _, e := range entries {
			w.t.Errorf("left over: %s/%s", dir, e.Name())
		}
	}
}

// acts returns the calls that change something, in order, as "Verb object", without IDs.
func (w *world) acts() []string {
	var all []string
	for _, c := range w.runtime.Calls() {
		if reads[c.Verb] {
			continue
		}
		if object := c.Object; len(object) < 60 {
			c.Verb += " " + object
		}
		all = append(all, c.Verb)
	}
	return all
}

// reads are the calls that change nothing.
var reads = map[string]bool{
	"ListPodSandbox":     true,
	"ListContainers":     true,
	"PodSandboxStatus":   true,
	"ContainerStatus":    true,
	"ImageStatus":        true,
	"GetContainerEvents": true,
	"Version":            true,
}

// eventsWith returns the events that contain a text, in order.
func (w *world) eventsWith(text string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.events), func(e string) bool { return !strings.Contains(e, text) })
}

// everythingLogged returns the whole log, including events.
func (w *world) everythingLogged() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.logged.String()
}

func (w *world) path(name string) string { return filepath.Join(w.root, name) }

// logbook writes log lines to the test's output, records the events among them, and fails the test if an error is
// logged.
type logbook struct {
	slog.Handler
	w *world
}

func (l logbook) Handle(ctx context.Context, r slog.Record) error {
	l.w.mu.Lock()
	fmt.Fprintln(&l.w.logged, r.Message)
	r.Attrs(func(a slog.Attr) bool { fmt.Fprintln(&l.w.logged, a); return true })
	l.w.mu.Unlock()
	if r.Message == "event" {
		var parts []string
		r.Attrs(func(a slog.Attr) bool { parts = append(parts, a.Value.String()); return true })
		l.w.mu.Lock()
		l.w.events = append(l.w.events, strings.Join(parts, " "))
		l.w.mu.Unlock()
	}
	if r.Level >= slog.LevelError {
		l.w.t.Errorf("logged as an error: %s", r.Message)
	}
	return l.Handler.Handle(ctx, r)
}

func (l logbook) WithAttrs(attrs []slog.Attr) slog.Handler {
	return logbook{l.Handler.WithAttrs(attrs), l.w}
}
