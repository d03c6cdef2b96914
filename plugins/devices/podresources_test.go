package devices_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	podresourcesalpha "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/nodelet/nodelet/plugins/devices"
	"github.com/nodelet/nodelet/test/faulttest"
	"github.com/nodelet/nodelet/test/plugins/plugintest"
)

// format returns a list of devices as text, with the NUMA node behind the name where there is one.
func format(list []*podresources.ContainerDevices) string {
	var all []string
	for _, d := range list {
		one := d.ResourceName + " " + strings.Join(d.DeviceIds, ",")
		for _, n := range d.GetTopology().GetNodes() {
			one += fmt.Sprint("@", n.ID)
		}
		all = append(all, one)
	}
	return strings.Join(all, "; ")
}

// dialPodResources returns a connection to the pod resources API.
func (w *world) dialPodResources() *grpc.ClientConn {
	w.T.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(w.Dir, "pod-resources", "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestPodResources checks that the pod resources API returns which container of which pod has which devices, and
// which devices the node has.
func TestPodResources(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plugin(nil)
	one := pod("one", "init 2", "sidecar 1", "app 2")
	one.Name, one.Namespace = "first", "default"
	w.admit(one)
	w.mu.Lock()
	w.pods = []*corev1.Pod{one}
	w.mu.Unlock()
	conn := w.dialPodResources()
	client := podresources.NewPodResourcesListerClient(conn)

	list, err := client.List(t.Context(), &podresources.ListPodResourcesRequest{}, grpc.WaitForReady(true))
	if err != nil || len(list.PodResources) != 1 {
		t.Fatalf("got %v, %v", list, err)
	}
	get, err := client.Get(t.Context(), &podresources.GetPodResourcesRequest{PodName: "first", PodNamespace: "default"})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*podresources.PodResources{list.PodResources[0], get.PodResources} {
		if p.Name != "first" || p.Namespace != "default" || len(p.Containers) != 2 {
			t.Fatalf("got %v", p)
		}
		sidecar, app := p.Containers[0], p.Containers[1]
		if got, want := format(sidecar.Devices), resourceName+" d1@0"; sidecar.Name != "sidecar" || got != want {
			t.Errorf("container %s: got devices %q, want sidecar with %q", sidecar.Name, got, want)
		}
		want := resourceName + " d2; " + resourceName + " d3"
		if got := format(app.Devices); app.Name != "app" || got != want {
			t.Errorf("container %s: got devices %q, want app with %q", app.Name, got, want)
		}
	}
	all, err := client.GetAllocatableResources(t.Context(), &podresources.AllocatableResourcesRequest{})
	want := strings.ReplaceAll("R d2; R d3; R d4; R d1@0", "R", resourceName)
	if err != nil || format(all.Devices) != want {
		t.Errorf("the node has %q, want %q; %v", format(all.GetDevices()), want, err)
	}
	if _, err := client.Get(t.Context(), &podresources.GetPodResourcesRequest{PodName: "second"}); err == nil ||
		!strings.Contains(err.Error(), "not found") {
		t.Errorf("got %v", err)
	}
	alpha, err := podresourcesalpha.NewPodResourcesListerClient(conn).List(t.Context(),
		&podresourcesalpha.ListPodResourcesRequest{})
	if err != nil || len(alpha.PodResources) != 1 || len(alpha.PodResources[0].Containers) != 2 {
		t.Fatalf("v1alpha1: got %v, %v, want one pod with two containers", alpha, err)
	}
	app := alpha.PodResources[0].Containers[1]
	if got := app.Devices; app.Name != "app" || len(got) != 2 || got[0].ResourceName != resourceName ||
		got[0].DeviceIds[0] != "d2" {
		t.Errorf("v1alpha1: got %v, want app with d2 and d3", app)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	counted := []string{"v1 List failed=false", "v1 Get failed=false", "v1 GetAllocatableResources failed=false",
		"v1 Get failed=true", "v1alpha1 List failed=false"}
	if !slices.Equal(w.asked, counted) {
		t.Errorf("got the calls %q counted, want %q", w.asked, counted)
	}
}

// shares are what containers and pods have exclusively, by the name of the container and the UID of the pod.
type shares struct {
	devices.Exclusive
	containers map[string]devices.Share
	pods       map[types.UID]devices.Share
}

func (s shares) OfContainer(_ *corev1.Pod, c *corev1.Container) devices.Share {
	return s.containers[c.Name]
}

func (s shares) OfPod(pod types.UID) devices.Share { return s.pods[pod] }

// TestPodsThatAreGone checks that a pod that no source has any more, and that still ends, is listed only while it has
// something that no other can get: clients look up each pod at the API server.
func TestPodsThatAreGone(t *testing.T) {
	t.Parallel()
	cpus, memory := []int64{1}, []*podresources.ContainerMemory{{MemoryType: "memory"}}
	w := &world{Node: plugintest.New(t), timeout: time.Hour, exclusive: shares{
		containers: map[string]devices.Share{"cpu": {CPUs: cpus}, "memory": {Memory: memory}},
		pods:       map[types.UID]devices.Share{"cpus": {CPUs: cpus}, "blocks": {Memory: memory}},
	}, claims: map[string][]*podresources.DynamicResource{"claim": {{ClaimName: "c"}}}}
	w.begin()
	w.plugin(nil)
	held := pod("device", "app 1")
	w.admit(held)
	w.mu.Lock()
	w.pods = []*corev1.Pod{pod("known", "app 1")}
	w.gone = []*corev1.Pod{held}
	for uid, container := range map[string]string{
		"nothing": "app 1", "cpus": "app 1", "blocks": "app 1", "cpu": "cpu 1", "memory": "memory 1", "claim": "claim 1",
	} {
		w.gone = append(w.gone, pod(uid, container))
	}
	for _, p := range slices.Concat(w.pods, w.gone) {
		p.Name = string(p.UID)
	}
	w.mu.Unlock()
	conn := w.dialPodResources()
	client := podresources.NewPodResourcesListerClient(conn)
	list, err := client.List(t.Context(), &podresources.ListPodResourcesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range list.PodResources {
		got = append(got, p.Name)
	}
	slices.Sort(got)
	if want := []string{"blocks", "claim", "cpu", "cpus", "device", "known", "memory"}; !slices.Equal(got, want) {
		t.Errorf("got the pods %q, want %q", got, want)
	}
	if _, err := client.Get(t.Context(), &podresources.GetPodResourcesRequest{PodName: "nothing"}); err == nil {
		t.Error("got a pod that is gone and has nothing, want an error")
	}
}

// TestPodResourcesAreLimited checks that a client that asks without a pause is refused, and that its calls are not
// counted, as with the kubelet.
func TestPodResourcesAreLimited(t *testing.T) {
	t.Parallel()
	w := &world{Node: plugintest.New(t), timeout: time.Hour, limiter: flowcontrol.NewFakeNeverRateLimiter()}
	w.begin()
	conn := w.dialPodResources()
	_, err := podresources.NewPodResourcesListerClient(conn).List(t.Context(), &podresources.ListPodResourcesRequest{},
		grpc.WaitForReady(true))
	if want := status.Error(codes.ResourceExhausted, "rejected by rate limit"); !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.asked) != 0 {
		t.Errorf("got the calls %q counted, want none", w.asked)
	}
}

// TestOtherSocketsStay checks that the agent leaves sockets of other programs beside that of the pod resources API.
func TestOtherSocketsStay(t *testing.T) {
	t.Parallel()
	w := &world{Node: plugintest.New(t), timeout: time.Hour}
	dir := filepath.Join(w.Dir, "pod-resources")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "proxy.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w.begin()
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = podresources.NewPodResourcesListerClient(conn).List(t.Context(), &podresources.ListPodResourcesRequest{},
		grpc.WaitForReady(true))
	if err != nil {
		t.Errorf("list: got %v, want no error", err)
	}
	if _, err := os.Lstat(l.Addr().String()); err != nil {
		t.Error(err)
	}
}

// TestSocketsOpenAgain checks that the sockets for plugins and for the pod resources API are opened again after they
// have failed, and that plugins keep their sockets then.
func TestSocketsOpenAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.plugin(nil)
	for range 2 {
		faulttest.BreakListener(t, filepath.Join(w.Dir, "device-plugins", "kubelet.sock"))
		if err := p.Register(t.Context()); err != nil {
			t.Errorf("register at a socket that was opened again: got %v, want no error", err)
		}
		socket := filepath.Join(w.Dir, "pod-resources", "kubelet.sock")
		faulttest.BreakListener(t, socket)
		conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		_, err = podresources.NewPodResourcesListerClient(conn).List(t.Context(), &podresources.ListPodResourcesRequest{},
			grpc.WaitForReady(true))
		if err != nil {
			t.Errorf("list at a socket that was opened again: got %v, want no error", err)
		}
		conn.Close()
	}
}
