package podsapi

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/nodelet/nodelet/test/faulttest"
)

// node is a node with pods, whose API runs on a real socket.
type node struct {
	t      *testing.T
	server *Server
	client api.PodsClient
	socket string
	asked  chan string

	mu   sync.Mutex
	pods map[types.UID]*corev1.Pod
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, pods: map[types.UID]*corev1.Pod{}, asked: make(chan string, 100)}
	root := t.TempDir()
	n.server = New(Config{
		Root: root,
		Pods: func(context.Context) ([]*corev1.Pod, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			var all []*corev1.Pod
			for _, pod := range n.pods {
				all = append(all, pod)
			}
			return all, nil
		},
		Asked: func(version, call, code string) { n.asked <- version + " " + call + " " + code },
		Log:   slog.New(slog.DiscardHandler),
	})
	n.server.Synced()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { n.server.Run(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	n.connect(socketPath(root))
	return n
}

func (n *node) connect(socket string) {
	n.t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { conn.Close() })
	n.client, n.socket = api.NewPodsClient(conn), socket
}

// set makes a pod have a phase.
func (n *node) set(uid types.UID, phase corev1.PodPhase) {
	n.mu.Lock()
	n.pods[uid] = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod-" + string(uid), UID: uid},
		Status:     corev1.PodStatus{Phase: phase},
	}
	n.mu.Unlock()
	n.server.Changed(uid)
}

func (n *node) remove(uid types.UID) {
	n.mu.Lock()
	delete(n.pods, uid)
	n.mu.Unlock()
	n.server.Changed(uid)
}

func decode(t *testing.T, text []byte) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := pod.Unmarshal(text); err != nil {
		t.Fatal(err)
	}
	return pod
}

// TestSocketOpensAgain checks that a socket that has failed is opened again.
func TestSocketOpensAgain(t *testing.T) {
	n := newNode(t)
	n.set("1", corev1.PodRunning)
	for range 2 {
		got, err := n.client.GetPod(t.Context(), &api.GetPodRequest{PodUID: "1"})
		if err != nil || decode(t, got.GetPod()).UID != "1" {
			t.Fatalf("got %v and error %v, want the pod", got, err)
		}
		faulttest.BreakListener(t, n.socket)
		n.connect(n.socket)
	}
}

func TestListAndGet(t *testing.T) {
	n := newNode(t)
	n.set("a", corev1.PodRunning)
	n.set("b", corev1.PodPending)
	list, err := n.client.ListPods(t.Context(), &api.ListPodsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, text := range list.GetPods() {
		pod := decode(t, text)
		got = append(got, pod.Name+" "+string(pod.Status.Phase))
	}
	slices.Sort(got)
	if want := []string{"pod-a Running", "pod-b Pending"}; !slices.Equal(got, want) {
		t.Errorf("list: got %v, want %v", got, want)
	}
	one, err := n.client.GetPod(t.Context(), &api.GetPodRequest{PodUID: "a"})
	if err != nil || decode(t, one.GetPod()).Name != "pod-a" {
		t.Errorf("get: got %v, %v; want pod-a", one, err)
	}
	if _, err := n.client.GetPod(t.Context(), &api.GetPodRequest{PodUID: "c"}); status.Code(err) != codes.NotFound {
		t.Errorf("get a pod that does not exist: got %v, want NotFound", err)
	}
}

// TestNotSynced checks that no call gets a part of the pods while the agent starts.
func TestNotSynced(t *testing.T) {
	n := newNode(t)
	n.server.synced.Store(false)
	if _, err := n.client.ListPods(t.Context(), &api.ListPodsRequest{}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("list: got %v, want FailedPrecondition", err)
	}
	if _, err := n.client.GetPod(t.Context(), &api.GetPodRequest{PodUID: "a"}); status.Code(
		err,
	) != codes.FailedPrecondition {
		t.Errorf("get: got %v, want FailedPrecondition", err)
	}
	w, err := n.client.WatchPods(t.Context(), &api.WatchPodsRequest{})
	if err == nil {
		_, err = w.Recv()
	}
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("watch: got %v, want FailedPrecondition", err)
	}
}

// receive returns the next event as text.
func receive(t *testing.T, w grpc.ServerStreamingClient[api.WatchPodsEvent]) string {
	t.Helper()
	e, err := w.Recv()
	if err != nil {
		t.Fatal(err)
	}
	pod := decode(t, e.GetPod())
	return e.GetType().String() + " " + pod.Name + " " + string(pod.Status.Phase)
}

// TestWatch checks the events of a watch: pods that are there, a mark, then each change and nothing else.
func TestWatch(t *testing.T) {
	n := newNode(t)
	n.set("a", corev1.PodPending)
	w, err := n.client.WatchPods(t.Context(), &api.WatchPodsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	expect := func(want string) {
		t.Helper()
		if got := receive(t, w); got != want {
			t.Errorf("got event %q, want %q", got, want)
		}
	}
	expect("ADDED pod-a Pending")
	expect("INITIAL_SYNC_COMPLETE  ")
	n.set("a", corev1.PodRunning)
	expect("MODIFIED pod-a Running")
	n.server.Changed("a")       // the same again: no event
	n.server.Changed("unknown") // a pod that the client never saw
	n.set("b", corev1.PodPending)
	expect("ADDED pod-b Pending")
	n.remove("a")
	expect("DELETED pod-a ")
	n.set("a", corev1.PodPending)
	expect("ADDED pod-a Pending")
}

// discarding is the server's side of a watch whose client reads nothing.
type discarding struct {
	grpc.ServerStream
	ctx context.Context
}

func (d discarding) Context() context.Context       { return d.ctx }
func (d discarding) Send(*api.WatchPodsEvent) error { return nil }

// TestWatchEnds checks that nothing of a watch is kept when its client has gone.
func TestWatchEnds(t *testing.T) {
	n := newNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.server.WatchPods(nil, discarding{ctx: ctx}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if left := len(n.server.watches); left != 0 {
		t.Errorf("got %d watches, want none", left)
	}
}

// blocked is the server's side of a watch whose client reads nothing until free is closed.
type blocked struct {
	discarding
	sending, free chan struct{}
}

func (b blocked) Send(*api.WatchPodsEvent) error {
	select {
	case b.sending <- struct{}{}:
	case <-b.free:
	}
	<-b.free
	return nil
}

// TestWatchOfSilentClient checks that not all pods that a node ever has are kept for a client that does not read, and
// that its watch ends once it reads again.
func TestWatchOfSilentClient(t *testing.T) {
	n := newNode(t)
	client := blocked{discarding{ctx: t.Context()}, make(chan struct{}), make(chan struct{})}
	ended := make(chan error)
	go func() { ended <- n.server.WatchPods(nil, client) }()
	<-client.sending
	for i := range 2 * maxChanged {
		n.server.Changed(types.UID(strconv.Itoa(i)))
	}
	for w := range n.server.watches {
		if got := len(w.changed); got > maxChanged {
			t.Fatalf("got %d pods that have changed, want at most %d", got, maxChanged)
		}
	}
	close(client.free)
	if err := <-ended; status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v, want ResourceExhausted", err)
	}
}

// TestCounts checks that each call is counted when it has ended, by its version and the code of its answer.
func TestCounts(t *testing.T) {
	n := newNode(t)
	want := func(text string) {
		t.Helper()
		if got := <-n.asked; got != text {
			t.Errorf("got %q, want %q", got, text)
		}
	}
	if _, err := n.client.ListPods(t.Context(), &api.ListPodsRequest{}); err != nil {
		t.Fatal(err)
	}
	want("v1alpha1 ListPods OK")
	_, _ = n.client.GetPod(t.Context(), &api.GetPodRequest{PodUID: "none"})
	want("v1alpha1 GetPod NotFound")
	ctx, cancel := context.WithCancel(t.Context())
	watch, err := n.client.WatchPods(ctx, &api.WatchPodsRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	want("v1alpha1 WatchPods Canceled")
}

// TestRate checks that calls over the limit are refused.
func TestRate(t *testing.T) {
	n := newNode(t)
	n.server.limiter = flowcontrol.NewFakeNeverRateLimiter()
	if _, err := n.client.ListPods(t.Context(), &api.ListPodsRequest{}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("ListPods: got %v, want ResourceExhausted", err)
	}
	watch, err := n.client.WatchPods(t.Context(), &api.WatchPodsRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("WatchPods: got %v, want ResourceExhausted", err)
	}
}
