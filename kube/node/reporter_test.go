package node

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var readyRuntime = Runtime{Name: "containerd", Version: "2.4.2", Ready: RuntimeCondition{OK: true}, Network: RuntimeCondition{OK: true}}

// machine writes the files of a small machine: 4 CPUs, 8 GiB, 512 huge pages of 2 MiB, boot ID boot-1.
func machine(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range map[string]string{
		"sys/devices/system/cpu/online": "0-3\n",
		"proc/meminfo":                  "MemTotal:        8388608 kB\nMemFree: 1 kB\nSwapTotal:       1024 kB\n",
		"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages":    "512\n",
		"sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "0\n",
		"etc/machine-id":                 "0123456789abcdef0123456789abcdef\n",
		"sys/class/dmi/id/product_uuid":  "UUID-1\n",
		"proc/sys/kernel/random/boot_id": "boot-1\n",
		"proc/sys/kernel/osrelease":      "6.18.0-test\n",
		"etc/os-release":                 "NAME=\"Debian\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n",
	} {
		file := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// bed is a Reporter that runs against a fake API server.
type bed struct {
	*Reporter
	t      testing.TB
	api    *fakeAPI
	mu     sync.Mutex
	events []string // reasons
}

func (b *bed) reasons() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.events
	b.events = nil
	return all
}

func testConfig(t testing.TB) Config {
	return Config{
		Name: testNode, Register: true, Labels: map[string]string{"mine": "yes"}, KubeletPort: 10250, AttachDetach: true,
		MachineRoot: machine(t), RootDir: t.TempDir(), MaxPods: 110, MaxImages: 50, KubeletVersion: "v1.36.3+nodelet.test", UserAgent: "test",
		StatusInterval: 10 * time.Second, ReportInterval: 5 * time.Minute, LeaseDuration: 40 * time.Second,
		Event: func(string, string, string) {}, Log: slog.New(slog.DiscardHandler),
	}
}

// start runs a Reporter until the test ends. It belongs into a synctest bubble.
func start(t *testing.T, api *fakeAPI, change func(*Config)) *bed {
	t.Helper()
	b := &bed{t: t, api: api}
	cfg := testConfig(t)
	cfg.Event = func(_, reason, _ string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.events = append(b.events, reason)
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if b.Reporter, err = New(cfg, api.client(t), api.config()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); b.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return b
}

func (b *bed) ready() corev1.NodeCondition {
	b.t.Helper()
	n := b.api.get()
	if n == nil {
		b.t.Fatal("there is no Node object")
	}
	c := find(n.Status.Conditions, corev1.NodeReady)
	if c == nil {
		b.t.Fatalf("no Ready condition: %+v", n.Status.Conditions)
	}
	return *c
}

// settle lets time pass until all goroutines wait.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func existing(ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: testNode, UID: "old", Labels: map[string]string{"team": "a", corev1.LabelHostname: "stale"},
			Annotations: map[string]string{providedIPAnnotation: "192.0.2.1", "other": "x"}},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "RouteCreated"},
				{Type: corev1.NodeReady, Status: ready, Reason: "KubeletReady", Message: "kubelet is posting ready status",
					LastTransitionTime: metav1.NewTime(time.Unix(1000, 0))},
			},
			Capacity:        corev1.ResourceList{"example.com/dongle": resource.MustParse("2"), "hugepages-32Mi": resource.MustParse("0")},
			Allocatable:     corev1.ResourceList{"example.com/dongle": resource.MustParse("2"), "hugepages-32Mi": resource.MustParse("0")},
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeInternalIP, Address: "2001:db8::1"}},
			NodeInfo:        corev1.NodeSystemInfo{BootID: "boot-0", KubeProxyVersion: "v1.30.0"},
			VolumesInUse:    []corev1.UniqueVolumeName{"kubernetes.io/csi/x^1"},
			VolumesAttached: []corev1.AttachedVolume{{Name: "kubernetes.io/csi/x^1"}},
		},
	}
}

func TestNewNodeIsBornReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		b := start(t, api, func(c *Config) {
			c.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}}
			c.ProviderID = "x://1"
		})
		settle(300 * time.Millisecond)
		if api.get() != nil {
			t.Fatal("registered before the runtime said anything")
		}
		b.SetRuntime(readyRuntime)
		settle(time.Millisecond)
		n := api.get()
		if c := b.ready(); c.Status != corev1.ConditionTrue || c.Reason != "KubeletReady" {
			t.Errorf("%+v", c)
		}
		if n.Labels["mine"] != "yes" || n.Labels[betaArch] == "" || n.Labels[corev1.LabelHostname] != testNode || n.Annotations[attachDetachAnnotation] != "true" {
			t.Errorf("%v %v", n.Labels, n.Annotations)
		}
		if len(n.Spec.Taints) != 1 || n.Spec.ProviderID != "x://1" || n.Status.NodeInfo.ContainerRuntimeVersion != "containerd://2.4.2" {
			t.Errorf("%+v %+v", n.Spec, n.Status.NodeInfo)
		}
		if got := api.seen(); !slices.Equal(got[len(got)-3:], []string{"POST nodes", "GET leases", "POST leases"}) && !slices.Contains(got, "POST nodes") {
			t.Errorf("requests: %v", got)
		}
		if owner := api.getLease().OwnerReferences; len(owner) != 1 || owner[0].UID != n.UID {
			t.Errorf("lease is owned by %v", owner)
		}
		if got := b.reasons(); !slices.Equal(got, []string{"Starting", "NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"}) {
			t.Errorf("events: %v", got)
		}
		if b.Node().UID != n.UID {
			t.Error("Node() is not the object")
		}
	})
}

// TestSilentRuntime: a new node registers after a moment although the runtime says nothing, and then says why it is not Ready.
func TestSilentRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &fakeAPI{}, nil)
		settle(3 * time.Second)
		if c := b.ready(); c.Status != corev1.ConditionFalse || c.Reason != "KubeletNotReady" || c.Message != "container runtime status check may not have completed yet" {
			t.Errorf("%+v", c)
		}
		b.SetRuntime(Runtime{Name: "containerd", Ready: RuntimeCondition{OK: true}, Network: RuntimeCondition{Reason: "NetworkPluginNotReady", Message: "cni plugin not initialized"}})
		settle(time.Millisecond)
		want := "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:cni plugin not initialized"
		if c := b.ready(); c.Message != want {
			t.Errorf("%+v", c)
		}
		b.reasons()
		b.SetRuntime(readyRuntime)
		settle(time.Millisecond)
		if c := b.ready(); c.Status != corev1.ConditionTrue || !slices.Equal(b.reasons(), []string{"NodeReady"}) {
			t.Errorf("readiness is not sent at once: %+v", c)
		}
	})
}

// TestRestartIsInvisible: an object that is Ready stays Ready while the runtime is asked, but not for ever.
func TestRestartIsInvisible(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		api.store(existing(corev1.ConditionTrue))
		b := start(t, api, nil)
		settle(29 * time.Second)
		if c := b.ready(); c.Status != corev1.ConditionTrue || !c.LastTransitionTime.Equal(&metav1.Time{Time: time.Unix(1000, 0)}) {
			t.Errorf("after 29 s: %+v", c)
		}
		settle(15 * time.Second)
		if c := b.ready(); c.Status != corev1.ConditionFalse {
			t.Errorf("after 44 s: %+v", c)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		api.store(existing(corev1.ConditionTrue))
		b := start(t, api, nil)
		settle(5 * time.Second)
		b.SetRuntime(readyRuntime)
		settle(20 * time.Second)
		if c := b.ready(); c.Status != corev1.ConditionTrue || !c.LastTransitionTime.Equal(&metav1.Time{Time: time.Unix(1000, 0)}) {
			t.Errorf("%+v", c)
		}
	})
}

// TestTakeOver brings an object up to date and leaves alone what belongs to others.
func TestTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		api.store(existing(corev1.ConditionUnknown))
		b := start(t, api, nil)
		b.SetRuntime(readyRuntime)
		settle(time.Second)
		n := api.get()
		if n.Labels["team"] != "a" || n.Labels[corev1.LabelHostname] != testNode || n.Labels["mine"] != "" {
			t.Errorf("labels: %v", n.Labels)
		}
		if _, stale := n.Annotations[providedIPAnnotation]; stale || n.Annotations["other"] != "x" || n.Annotations[attachDetachAnnotation] != "true" {
			t.Errorf("annotations: %v", n.Annotations)
		}
		if q := n.Status.Allocatable["example.com/dongle"]; q.Value() != 2 {
			t.Errorf("extended resource: %v", n.Status.Allocatable)
		}
		if _, ok := n.Status.Capacity["hugepages-32Mi"]; ok || len(n.Status.VolumesInUse) != 1 || len(n.Status.VolumesAttached) != 1 {
			t.Errorf("%+v", n.Status)
		}
		want := []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: testNode}, {Type: corev1.NodeHostName, Address: testNode}}
		if !slices.Equal(n.Status.Addresses, want) || n.Status.NodeInfo.KubeProxyVersion != "" {
			t.Errorf("%+v %+v", n.Status.Addresses, n.Status.NodeInfo)
		}
		if find(n.Status.Conditions, corev1.NodeNetworkUnavailable) == nil || b.ready().Status != corev1.ConditionTrue || len(n.Status.Conditions) != 5 {
			t.Errorf("%+v", n.Status.Conditions)
		}
		if got := b.reasons(); !slices.Equal(got[:2], []string{"Starting", "Rebooted"}) || !slices.Contains(got, "NodeReady") {
			t.Errorf("events: %v", got)
		}
		b.SetVolumesInUse(nil)
		settle(time.Millisecond)
		if len(api.get().Status.VolumesInUse) != 0 {
			t.Error("volumes in use are still there")
		}
		if q := b.Allocatable()["example.com/dongle"]; q.Value() != 2 {
			t.Error("Allocatable forgot the extended resource")
		}
	})
}

// TestQuiet: at rest there is a patch every five minutes and a lease every ten seconds, nothing else.
func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		b := start(t, api, nil)
		b.SetRuntime(readyRuntime)
		settle(time.Second)
		api.seen()
		for range 360 { // an hour in which the runtime answers each 10 s
			time.Sleep(10 * time.Second)
			b.SetRuntime(readyRuntime)
		}
		count := map[string]int{}
		for _, r := range api.seen() {
			count[r]++
		}
		if n := count["PATCH nodes"]; n < 11 || n > 13 {
			t.Errorf("%d patches in an hour", n)
		}
		if n := count["PUT leases"]; n < 350 || n > 370 || len(count) != 2 {
			t.Errorf("requests in an hour: %v", count)
		}
		for _, p := range api.patches {
			if strings.Contains(p, "capacity") || strings.Contains(p, "nodeInfo") || strings.Contains(p, "images") || !strings.Contains(p, "lastHeartbeatTime") {
				t.Errorf("a heartbeat carries more than conditions: %s", p)
			}
		}
	})
}

// TestRuntimeGoesAway: 30 s of silence, as with the kubelet, then NotReady; a word of the runtime brings it back at once.
func TestRuntimeGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &fakeAPI{}, nil)
		b.SetRuntime(readyRuntime)
		settle(time.Second)
		for range 5 {
			b.SetRuntime(Runtime{Err: errors.New("connection refused")})
			settle(5 * time.Second)
		}
		if c := b.ready(); c.Status != corev1.ConditionTrue {
			t.Errorf("after 25 s: %+v", c)
		}
		settle(16 * time.Second)
		if c := b.ready(); c.Status != corev1.ConditionFalse || c.Message != "container runtime is down" {
			t.Errorf("after 41 s: %+v", c)
		}
		b.SetRuntime(readyRuntime)
		settle(time.Millisecond)
		if c := b.ready(); c.Status != corev1.ConditionTrue {
			t.Errorf("%+v", c)
		}
	})
}

func TestPressureAndShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &fakeAPI{}, nil)
		b.SetRuntime(readyRuntime)
		settle(time.Second)
		b.reasons()
		b.SetPressure(Pressure{Memory: true, PID: true})
		settle(time.Millisecond)
		n := b.api.get()
		memory, disk := find(n.Status.Conditions, corev1.NodeMemoryPressure), find(n.Status.Conditions, corev1.NodeDiskPressure)
		if memory.Status != corev1.ConditionTrue || memory.Reason != "KubeletHasInsufficientMemory" || disk.Status != corev1.ConditionFalse {
			t.Errorf("%+v %+v", memory, disk)
		}
		if got := b.reasons(); !slices.Equal(got, []string{"NodeHasInsufficientMemory", "NodeHasInsufficientPID"}) {
			t.Errorf("events: %v", got)
		}
		b.SetShutdown(errors.New("node is shutting down"))
		settle(time.Millisecond)
		if c := b.ready(); c.Status != corev1.ConditionFalse || c.Message != "node is shutting down" {
			t.Errorf("%+v", c)
		}
	})
}

// TestControlPlaneSaysUnknown: when the control plane gave the node up wrongly, it learns at once that it lives.
func TestControlPlaneSaysUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &fakeAPI{}, nil)
		b.SetRuntime(readyRuntime)
		settle(time.Second)
		n := b.api.get()
		c := find(n.Status.Conditions, corev1.NodeReady)
		c.Status, c.Reason = corev1.ConditionUnknown, "NodeStatusUnknown"
		n.Spec.Unschedulable = true
		b.api.store(n)
		settle(time.Millisecond)
		if c := b.ready(); c.Status != corev1.ConditionTrue || !b.Node().Spec.Unschedulable {
			t.Errorf("%+v", c)
		}
		if !slices.Contains(b.reasons(), "NodeNotSchedulable") {
			t.Error("no event NodeNotSchedulable")
		}
	})
}

func TestRegistrationRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var away atomic.Bool
		away.Store(true)
		api := &fakeAPI{}
		api.before = func(*http.Request) error {
			if away.Load() {
				return errors.New("connection refused")
			}
			return nil
		}
		b := start(t, api, nil)
		b.SetRuntime(readyRuntime)
		settle(time.Minute)
		if b.Health() == nil {
			t.Error("well without an API server for a minute")
		}
		if q := b.Allocatable()[corev1.ResourceCPU]; q.Value() != 4 || b.Node().Labels["mine"] != "yes" {
			t.Error("the node is not known offline")
		}
		away.Store(false)
		b.SetRuntime(readyRuntime)
		settle(15 * time.Second)
		if c := b.ready(); c.Status != corev1.ConditionTrue || b.Health() != nil || api.getLease() == nil {
			t.Errorf("%+v, health %v", c, b.Health())
		}
	})
}

// TestStandalone: without an API server pods are judged by the same facts, addresses and conditions among them.
func TestStandalone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t)
		told := make(chan *corev1.Node, 100)
		cfg.Changed = func(n *corev1.Node) { told <- n }
		r, err := New(cfg, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		r.SetRuntime(readyRuntime)
		settle(time.Second)
		n := r.Node()
		if len(n.Status.Addresses) != 2 || n.Status.Addresses[0].Address != testNode || n.Labels["mine"] != "yes" || n.UID != "" {
			t.Errorf("%+v", n)
		}
		if c := find(n.Status.Conditions, corev1.NodeReady); c == nil || c.Status != corev1.ConditionTrue || r.Health() != nil {
			t.Errorf("%+v", n.Status.Conditions)
		}
		before := len(told)
		for range 10 {
			settle(10 * time.Second)
			r.SetRuntime(readyRuntime)
		}
		if len(told) != before || before == 0 {
			t.Errorf("told %d times, then %d times more without a change", before, len(told)-before)
		}
		cancel()
		<-done
	})
}

func TestForbiddenToCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		api.store(existing(corev1.ConditionUnknown))
		api.before = func(r *http.Request) error {
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/nodes") {
				return apierrors.NewForbidden(nodes, "", errors.New("no"))
			}
			return nil
		}
		b := start(t, api, nil)
		b.SetRuntime(readyRuntime)
		settle(time.Second)
		if c := b.ready(); c.Status != corev1.ConditionTrue {
			t.Errorf("%+v", c)
		}
	})
}

func TestDoesNotRegister(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		b := start(t, api, func(c *Config) { c.Register = false })
		b.SetRuntime(readyRuntime)
		settle(20 * time.Second)
		if api.get() != nil || api.getLease() != nil {
			t.Fatal("it registered, or made a lease without an owner")
		}
		api.store(existing(corev1.ConditionUnknown))
		settle(10 * time.Second)
		if c := b.ready(); c.Status != corev1.ConditionTrue || api.getLease() == nil {
			t.Errorf("%+v", c)
		}
		if n := api.get(); n.Labels["mine"] != "" {
			t.Errorf("labels of another's object: %v", n.Labels)
		}
	})
}

// TestDeletedNodeStaysDeleted as with the kubelet: an administrator who deletes a node means it.
func TestDeletedNodeStaysDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &fakeAPI{}, nil)
		b.SetRuntime(readyRuntime)
		settle(time.Second)
		b.api.mu.Lock()
		b.api.node = nil
		b.api.mu.Unlock()
		settle(10 * time.Minute)
		if b.api.get() != nil {
			t.Error("the object came back")
		}
		again := existing(corev1.ConditionUnknown)
		again.UID = "new"
		b.api.store(again)
		settle(20 * time.Second)
		b.SetRuntime(readyRuntime)
		settle(20 * time.Second)
		if n := b.api.get(); b.ready().Status != corev1.ConditionTrue || n.Labels[corev1.LabelHostname] != testNode || b.Node().UID != "new" {
			t.Errorf("a new object of the same name is not taken: %+v", n)
		}
	})
}

func TestExternalCloud(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &fakeAPI{}, func(c *Config) { c.ExternalCloud = true })
		b.SetRuntime(readyRuntime)
		settle(time.Second)
		n := b.api.get()
		if len(n.Status.Addresses) != 1 || n.Status.Addresses[0].Type != corev1.NodeHostName {
			t.Errorf("%v", n.Status.Addresses)
		}
		if len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Key != cloudTaint {
			t.Errorf("%v", n.Spec.Taints)
		}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeExternalIP, Address: "203.0.113.1"}}
		b.api.store(n)
		settle(time.Minute)
		if got := b.api.get().Status.Addresses; len(got) != 1 || got[0].Address != "203.0.113.1" {
			t.Errorf("the provider's addresses became %v", got)
		}
	})
}

func TestFailedPatchIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		var broken atomic.Bool
		api.before = func(r *http.Request) error {
			if broken.Load() && r.Method == http.MethodPatch {
				return apierrors.NewInternalError(errors.New("etcd"))
			}
			return nil
		}
		b := start(t, api, nil)
		b.SetRuntime(readyRuntime)
		settle(time.Second)
		b.reasons()
		broken.Store(true)
		b.SetPressure(Pressure{Disk: true})
		settle(3 * time.Second)
		if len(b.reasons()) != 0 {
			t.Error("an event for a change that was not sent")
		}
		broken.Store(false)
		settle(5 * time.Second)
		if got := b.reasons(); !slices.Equal(got, []string{"NodeHasDiskPressure"}) {
			t.Errorf("events: %v", got)
		}
	})
}

func TestImagesInStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &fakeAPI{}, func(c *Config) { c.MaxImages = 2 })
		b.SetRuntime(readyRuntime)
		b.SetImages([]Image{
			{Digests: []string{"a@sha256:1"}, Tags: []string{"a:1"}, Bytes: 10},
			{Tags: []string{"b:1", "b:2", "b:3", "b:4", "b:5", "b:6"}, Bytes: 30},
			{Tags: []string{"c:1"}, Bytes: 20},
		})
		settle(time.Second)
		got := b.api.get().Status.Images
		if len(got) != 2 || got[0].SizeBytes != 30 || len(got[0].Names) != 5 || got[1].Names[0] != "c:1" {
			t.Errorf("%+v", got)
		}
		b.SetImages(nil)
		settle(time.Millisecond)
		if got := b.api.get().Status.Images; len(got) != 0 {
			t.Errorf("%+v", got)
		}
	})
}
