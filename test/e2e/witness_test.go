//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/watch"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// witness checks that nothing happens to the pods that were on the node when it started. It records containers that
// start or exit (events of the runtime), mounts that appear or disappear (the kernel's mount table), pods that are
// deleted, turn not Ready, or change their address or their containers, endpoints that turn not ready, and a node
// that turns not Ready.
type witness struct {
	began  time.Time
	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup
	stop   *os.File // closed to end the watch of the mounts

	// pods has the pods at the start by the UID of their API object. uids maps all their UIDs to names, including the
	// UIDs of static pods, which their sandboxes and directories have.
	pods map[string]*corev1.Pod
	uids map[string]string
	ran  []string

	mu    sync.Mutex
	saw   []string
	ready map[string]bool // ready endpoints, by slice and address

	// podUpdates and nodeUpdates count what the watches have seen; each belongs to its watch until that ends.
	podUpdates, nodeUpdates int
}

// beginWitness starts to watch the pods that are in the API now.
func beginWitness(t *testing.T) *witness {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &witness{
		began:  time.Now(),
		ctx:    ctx,
		cancel: cancel,
		pods:   map[string]*corev1.Pod{},
		uids:   map[string]string{},
		ready:  map[string]bool{},
	}
	for _, p := range listPods(t, "") {
		w.pods[string(p.UID)] = &p
		w.uids[string(p.UID)] = p.Name
		if static := p.Annotations["kubernetes.io/config.mirror"]; static != "" {
			w.uids[static] = p.Name
		}
	}
	w.ran = w.instances(t)
	w.watchMounts(t)
	w.watchRuntime(ctx, t)
	w.done.Go(func() { _ = follow(ctx, "pods", labelled(""), w.pod) }) // runs until ctx ends
	w.done.Go(func() { _ = follow(ctx, "nodes", named(node().Name), w.node) })
	w.watchEndpoints(ctx, t)
	t.Cleanup(func() { w.end() })
	return w
}

// check ends the watch and fails the test for each change that was recorded.
func (w *witness) check(t *testing.T, during string) {
	t.Helper()
	w.end()
	for _, s := range w.saw {
		t.Errorf("%s: %s", during, s)
	}
	if now := w.instances(t); !slices.Equal(now, w.ran) {
		t.Errorf("%s: containers: got\n%s\nwant\n%s", during, strings.Join(now, "\n"), strings.Join(w.ran, "\n"))
	}
	if len(w.ready) == 0 {
		t.Errorf("%s: endpoints: got none, want at least one", during)
	}
	if w.podUpdates == 0 || w.nodeUpdates == 0 {
		t.Errorf("%s: updates: got %d of pods and %d of nodes, want some of both", during, w.podUpdates, w.nodeUpdates)
	}
	t.Logf("%s: %d pods, %d sandboxes and containers, %d endpoints were watched for %s, with %d changes", during,
		len(w.pods), len(w.ran), len(w.ready), time.Since(w.began).Round(time.Second), len(w.saw))
}

func (w *witness) end() {
	w.cancel()
	_ = w.stop.Close() // it may be closed already
	w.done.Wait()
}

func (w *witness) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.saw = append(w.saw, fmt.Sprintf("after %s: ", time.Since(w.began).Round(10*time.Millisecond))+fmt.Sprintf(format,
		args...))
}

// instances lists the sandboxes and containers of the pods in the runtime, with their states.
func (w *witness) instances(t *testing.T) (all []string) {
	t.Helper()
	client, closeConn, err := node().Runtime.CRI()
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn()
	sandboxes, err := client.ListPodSandbox(context.Background(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sandboxes.Items {
		if pod := w.uids[s.Metadata.Uid]; pod != "" {
			all = append(all, fmt.Sprintf("%s sandbox %s %s", pod, s.Id, s.State))
		}
	}
	made, err := client.ListContainers(context.Background(), &runtimeapi.ListContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range made.Containers {
		if pod := w.uids[c.Labels["io.kubernetes.pod.uid"]]; pod != "" {
			all = append(all, fmt.Sprintf("%s %s %s %s", pod, c.Metadata.Name, c.Id, c.State))
		}
	}
	slices.Sort(all)
	return all
}

// watchRuntime reads the runtime's events. containerd replays earlier events, which do not count.
func (w *witness) watchRuntime(ctx context.Context, t *testing.T) {
	t.Helper()
	client, closeConn, err := node().Runtime.CRI()
	if err != nil {
		t.Fatal(err)
	}
	events, err := client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w.done.Go(func() {
		defer closeConn()
		for {
			e, err := events.Recv()
			if err != nil {
				if ctx.Err() == nil {
					w.note("read the runtime's events: %v", err)
				}
				return
			}
			pod := w.uids[e.GetPodSandboxStatus().GetMetadata().GetUid()]
			if pod != "" && e.CreatedAt > w.began.UnixNano() {
				w.note("pod %s: %s of %s", pod, e.ContainerEventType, e.ContainerId)
			}
		}
	})
}

// watchMounts polls the kernel for changes of the mount table. The agents share the mount namespace with the test.
func (w *witness) watchMounts(t *testing.T) {
	t.Helper()
	table, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	ended, stop, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w.stop = stop
	before := w.mounts()
	w.done.Go(func() {
		defer table.Close()
		defer ended.Close()
		for {
			polled := []unix.PollFd{{Fd: int32(table.Fd()), Events: unix.POLLPRI}, {Fd: int32(ended.Fd()), Events: unix.POLLIN}}
			if _, err := unix.Poll(polled, -1); err != nil && err != unix.EINTR {
				w.note("poll the mount table: %v", err)
				return
			}
			now := w.mounts()
			for m := range maps.Keys(before) {
				if !now[m] {
					w.note("unmounted: %s", m)
				}
			}
			for m := range maps.Keys(now) {
				if !before[m] {
					w.note("mounted: %s", m)
				}
			}
			before = now
			if polled[1].Revents != 0 {
				return
			}
		}
	})
}

// mounts lists the mounts of the pods and the CSI drivers below the agent's root directory, with the kernel's ID of
// each.
func (w *witness) mounts() map[string]bool {
	all, err := mountinfo.GetMounts(mountinfo.PrefixFilter(node().RootDir))
	if err != nil {
		w.note("read the mount table: %v", err)
	}
	found := map[string]bool{}
	for _, m := range all {
		below := strings.TrimPrefix(m.Mountpoint, node().RootDir)
		if uid, ofPod := strings.CutPrefix(below, "/pods/"); ofPod {
			uid, _, _ = strings.Cut(uid, "/")
			if w.uids[uid] == "" {
				continue
			}
		}
		found[fmt.Sprintf("%s (%d)", below, m.ID)] = true
	}
	return found
}

func (w *witness) node(e watch.Event) bool {
	w.nodeUpdates++
	if n, ok := e.Object.(*corev1.Node); ok && !nodeReady(n) {
		w.note("the node is not Ready: %+v", n.Status.Conditions)
	}
	return false
}

func (w *witness) pod(e watch.Event) bool {
	w.podUpdates++
	p, ok := e.Object.(*corev1.Pod)
	if !ok || w.pods[string(p.UID)] == nil {
		return false
	}
	was := w.pods[string(p.UID)]
	if e.Type == watch.Deleted || p.DeletionTimestamp != nil {
		w.note("pod %s is deleted (%s)", p.Name, e.Type)
	}
	if had, has := summary(was), summary(p); had != has {
		w.note("pod %s was %s and is %s", p.Name, had, has)
		w.pods[string(p.UID)] = p
	}
	return false
}

// summary returns the part of a pod's status that must not change while nothing happens to the pod.
func summary(p *corev1.Pod) string {
	text := fmt.Sprintf("%s Ready=%s IP=%s", p.Status.Phase, condition(p, corev1.PodReady), p.Status.PodIP)
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		state, _ := json.Marshal(c.State) // a state always encodes
		text += fmt.Sprintf(" %s:%s,%d,%v,%s", c.Name, c.ContainerID, c.RestartCount, c.Ready, state)
	}
	return text
}

// watchEndpoints watches the EndpointSlices. An address that is ready must stay ready.
func (w *witness) watchEndpoints(ctx context.Context, t *testing.T) {
	t.Helper()
	body, err := api.Core.Get().AbsPath("/apis/discovery.k8s.io/v1/namespaces/"+space+"/endpointslices").Param("watch",
		"true").
		Param("resourceVersion", "0"). // see named
		SetHeader("Accept", "application/json").Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	w.done.Go(func() {
		defer body.Close()
		for read := json.NewDecoder(body); ; {
			var e struct {
				Type   watch.EventType
				Object json.RawMessage
			}
			s := &discoveryv1.EndpointSlice{}
			err := read.Decode(&e)
			if err == nil && e.Type == watch.Error {
				err = fmt.Errorf("%s", e.Object)
			}
			if err == nil {
				err = json.Unmarshal(e.Object, s)
			}
			if err != nil {
				if ctx.Err() == nil {
					w.note("read the endpoints: %v", err)
				}
				return
			}
			w.endpoints(s)
		}
	})
}

func (w *witness) endpoints(s *discoveryv1.EndpointSlice) {
	if s.Name == "kubernetes" { // the API server's own
		return
	}
	now := map[string]bool{}
	for _, e := range s.Endpoints {
		now[s.Name+" "+strings.Join(e.Addresses, ",")] = e.Conditions.Ready == nil || *e.Conditions.Ready
	}
	for address := range w.ready {
		if strings.HasPrefix(address, s.Name+" ") && !now[address] {
			w.note("endpoint %s is not ready any more", address)
			delete(w.ready, address)
		}
	}
	for address, is := range now {
		if is {
			w.ready[address] = true
		}
	}
}
