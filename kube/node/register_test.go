package node

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/kubelet/pkg/apis"
)

// TestNewNodeIsRegisteredReady checks that a new node waits for the runtime and is Ready when it is registered.
func TestNewNodeIsRegisteredReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		b := start(t, api, func(c *Config) {
			c.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}}
			c.ProviderID = "x://1"
		})
		settle(300 * time.Millisecond)
		if api.get() != nil {
			t.Fatal("before the runtime has answered: got the node registered, want it not registered")
		}
		b.setRuntime(readyRuntime)
		settle(time.Millisecond)
		n := api.get()
		if c := b.ready(); c.Status != corev1.ConditionTrue || c.Reason != "KubeletReady" {
			t.Errorf("got %+v", c)
		}
		if n.Labels["mine"] != "yes" || n.Labels[apis.LabelArch] == "" || n.Labels[corev1.LabelHostname] != testNode {
			t.Errorf("got labels %v", n.Labels)
		}
		if n.Annotations[attachDetachAnnotation] != "true" {
			t.Errorf("got annotations %v, want %s=true", n.Annotations, attachDetachAnnotation)
		}
		if len(n.Spec.Taints) != 1 || n.Spec.ProviderID != "x://1" {
			t.Errorf("got spec %+v", n.Spec)
		}
		if got, want := n.Status.NodeInfo.ContainerRuntimeVersion, "containerd://2.4.2"; got != want {
			t.Errorf("runtime version: got %q, want %q", got, want)
		}
		if inside := n.Status.NodeInfo.RunningInUserNamespace; inside == nil || *inside {
			t.Errorf("in a user namespace: got %v, want false", inside)
		}
		if got := api.seen(); !slices.Contains(got, "POST nodes") {
			t.Errorf("requests: got %v, want POST nodes", got)
		}
		if owner := api.getLease().OwnerReferences; len(owner) != 1 || owner[0].UID != n.UID {
			t.Errorf("lease: got owners %v, want the node %s", owner, n.UID)
		}
		want := []string{"Starting", "NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"}
		if got := b.reasons(); !slices.Equal(got, want) {
			t.Errorf("events: got %v, want %v", got, want)
		}
		if got := b.Node().UID; got != n.UID {
			t.Errorf("Node: got UID %s, want %s", got, n.UID)
		}
	})
}

// TestSilentRuntime checks that a new node is registered after a short time if the runtime does not answer, and that
// its Ready condition has the reason.
func TestSilentRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &fakeAPI{}, nil)
		settle(3 * time.Second)
		want := "container runtime status check may not have completed yet"
		if c := b.ready(); c.Status != corev1.ConditionFalse || c.Reason != "KubeletNotReady" || c.Message != want {
			t.Errorf("without an answer: got %+v, want False with %q", c, want)
		}
		b.setRuntime(Runtime{
			Name:    "containerd",
			Ready:   RuntimeCondition{OK: true},
			Network: RuntimeCondition{Reason: "NetworkPluginNotReady", Message: "cni plugin not initialized"},
		})
		settle(time.Millisecond)
		want = "container runtime network not ready: " +
			"NetworkReady=false reason:NetworkPluginNotReady message:cni plugin not initialized"
		if c := b.ready(); c.Message != want {
			t.Errorf("without a network: got %+v, want %q", c, want)
		}
		b.reasons()
		b.setRuntime(readyRuntime)
		settle(time.Millisecond)
		if c := b.ready(); c.Status != corev1.ConditionTrue || !slices.Equal(b.reasons(), []string{"NodeReady"}) {
			t.Errorf("right after the runtime is ready: got %+v, want True and an event", c)
		}
	})
}

// TestUpdateExistingNode checks that the agent updates an existing object, and keeps what other clients own.
func TestUpdateExistingNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		api.store(existing(corev1.ConditionUnknown))
		b := start(t, api, nil)
		b.setRuntime(readyRuntime)
		settle(time.Second)
		n := api.get()
		if n.Labels["team"] != "a" || n.Labels[corev1.LabelHostname] != testNode || n.Labels["mine"] != "" {
			t.Errorf("labels: got %v", n.Labels)
		}
		_, stale := n.Annotations[providedIPAnnotation]
		if stale || n.Annotations["other"] != "x" || n.Annotations[attachDetachAnnotation] != "true" {
			t.Errorf("annotations: got %v", n.Annotations)
		}
		if q := n.Status.Allocatable["example.com/dongle"]; q.Value() != 2 {
			t.Errorf("extended resource: got %v", n.Status.Allocatable)
		}
		if _, stale := n.Status.Capacity["hugepages-32Mi"]; stale {
			t.Errorf("capacity: got %v, want no hugepages-32Mi", n.Status.Capacity)
		}
		if len(n.Status.VolumesInUse) != 1 || len(n.Status.VolumesAttached) != 1 {
			t.Errorf("volumes: got %v in use, %v attached", n.Status.VolumesInUse, n.Status.VolumesAttached)
		}
		want := []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: testNode},
			{Type: corev1.NodeHostName, Address: testNode},
		}
		if !slices.Equal(n.Status.Addresses, want) || n.Status.NodeInfo.KubeProxyVersion != "" {
			t.Errorf("got addresses %+v, node info %+v", n.Status.Addresses, n.Status.NodeInfo)
		}
		conditions := n.Status.Conditions
		if find(conditions, corev1.NodeNetworkUnavailable) == nil || len(conditions) != 5 {
			t.Errorf("conditions: got %+v, want the four of the agent and NetworkUnavailable", conditions)
		}
		if got := b.ready().Status; got != corev1.ConditionTrue {
			t.Errorf("Ready: got %s, want True", got)
		}
		if got := b.reasons(); !slices.Equal(got[:2], []string{"Starting", "Rebooted"}) ||
			!slices.Contains(got, "NodeReady") {
			t.Errorf("events: got %v", got)
		}
		b.SetVolumesInUse(nil)
		settle(time.Millisecond)
		if len(api.get().Status.VolumesInUse) != 0 {
			t.Error("SetVolumesInUse(nil): got the old list, want an empty one")
		}
		if q := b.Allocatable()["example.com/dongle"]; q.Value() != 2 {
			t.Error("Allocatable: got no extended resource, want one")
		}
	})
}

// TestInUse checks that a volume counts as in use only if the API server has it in its list: not while it does not know
// yet that the volume, which has left the list, is in it again. Changed is called when it does.
func TestInUse(t *testing.T) {
	const name = corev1.UniqueVolumeName("kubernetes.io/csi/x^1")
	list := []corev1.UniqueVolumeName{name}
	lost := errors.New("connection reset by peer")
	// Each case gets the first patch after the volume has left the list, and how to write it.
	for what, patch := range map[string]func(answer <-chan struct{}, write func()) error{
		"under way":          func(answer <-chan struct{}, _ func()) error { <-answer; return nil },
		"lost":               func(<-chan struct{}, func()) error { return lost },
		"its answer lost":    func(_ <-chan struct{}, write func()) error { write(); return lost },
		"its answer is late": func(answer <-chan struct{}, write func()) error { write(); <-answer; return lost },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &fakeAPI{}
				api.store(existing(corev1.ConditionTrue))
				var reporter atomic.Pointer[bed]
				var notified atomic.Bool // at the last call of Changed, the volume was in use
				b := start(t, api, func(c *Config) {
					c.Changed = func(*corev1.Node) {
						if b := reporter.Load(); b != nil {
							notified.Store(b.InUse(name))
						}
					}
				})
				reporter.Store(b)
				b.setRuntime(readyRuntime)
				b.SetVolumesInUse(list)
				settle(time.Second)
				if !b.InUse(name) {
					t.Error("in the list that is known: got not in use, want in use")
				}
				answer, first := make(chan struct{}), true
				api.before = func(r *http.Request) error {
					if r.Method != http.MethodPatch || !first {
						return nil
					}
					first = false
					return patch(answer, func() {
						n := api.get()
						n.Status.VolumesInUse = nil
						api.store(n)
					})
				}
				b.SetVolumesInUse(nil)
				synctest.Wait()
				b.SetVolumesInUse(list)
				if b.InUse(name) {
					t.Error("in the list again: got in use, want it not before the API server knows that")
				}
				close(answer)
				for !b.InUse(name) {
					settle(time.Millisecond)
				}
				if !slices.Contains(api.get().Status.VolumesInUse, name) {
					t.Error("in use: the API server does not have it in its list")
				}
				if !notified.Load() {
					t.Error("in use: got no call of Changed since then")
				}
			})
		})
	}
}

// TestNodeOfAnother checks that the agent changes no label of an object that another component registers, except those
// that must not be wrong, and that it sets the addresses for the cloud provider again when a client has removed them.
func TestNodeOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		api.store(existing(corev1.ConditionTrue))
		b := start(t, api, func(c *Config) {
			c.Register, c.ExternalCloud = false, true
			c.Labels = map[string]string{corev1.LabelTopologyZone: "b"}
			c.IPs = []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")}
		})
		b.setRuntime(readyRuntime)
		settle(time.Second)
		n := api.get()
		want := map[string]string{
			"team":                 "a",
			corev1.LabelHostname:   "stale",
			corev1.LabelOSStable:   runtime.GOOS,
			corev1.LabelArchStable: runtime.GOARCH,
		}
		if !maps.Equal(n.Labels, want) {
			t.Errorf("got labels %v, want %v", n.Labels, want)
		}
		if v, has := n.Annotations[attachDetachAnnotation]; has {
			t.Errorf("got %s=%s, want none", attachDetachAnnotation, v)
		}
		delete(n.Annotations, providedIPAnnotation)
		api.store(n)
		settle(time.Minute)
		if got := api.get().Annotations[providedIPAnnotation]; got != "192.0.2.7,2001:db8::7" {
			t.Errorf("removed annotation %s: got %q, want it back", providedIPAnnotation, got)
		}
	})
}

// TestAdvertisedResource checks that pods may use an extended resource whose capacity an administrator sets in the
// Node object, as long as it is there: that is how Kubernetes documents it.
func TestAdvertisedResource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		api.store(existing(corev1.ConditionTrue))
		b := start(t, api, nil)
		b.setRuntime(readyRuntime)
		settle(time.Second)
		const name = "example.com/license"
		for _, count := range []string{"4", "8", "3", ""} {
			n := api.get()
			delete(n.Status.Capacity, name)
			if count != "" {
				n.Status.Capacity[name] = resource.MustParse(count)
			}
			api.store(n)
			settle(time.Second)
			got, has := api.get().Status.Allocatable[name]
			if has != (count != "") || has && got.String() != count {
				t.Errorf("capacity %q: got allocatable %v (%v), want the same", count, &got, has)
			}
			if _, offered := b.Allocatable()[name]; offered != has {
				t.Errorf("capacity %q: Allocatable has it: got %v, want %v", count, offered, has)
			}
		}
	})
}

// TestReinstalledMachine checks that the devices of an earlier installation are not offered: pods that get some would
// be refused, or start without them. What the device plugins have registered counts.
func TestReinstalledMachine(t *testing.T) {
	const same = "0123456789abcdef0123456789abcdef"
	for _, tt := range []struct {
		id      string
		emptied bool
		want    int64
	}{{same, false, 2}, {"another", false, 0}, {"", false, 2}, {same, true, 0}} {
		synctest.Test(t, func(t *testing.T) {
			api := &fakeAPI{}
			n := existing(corev1.ConditionTrue)
			n.Status.NodeInfo.MachineID = tt.id
			n.Status.Capacity["example.com/gpu"] = resource.MustParse("8")
			n.Status.Allocatable["example.com/gpu"] = resource.MustParse("8")
			api.store(n)
			b := start(t, api, func(c *Config) {
				if tt.emptied {
					c.RootDir = t.TempDir()
				}
			})
			devices := corev1.ResourceList{"example.com/gpu": resource.MustParse("4")}
			b.SetDevices(devices, devices)
			b.setRuntime(readyRuntime)
			settle(time.Second)
			st := api.get().Status
			for _, list := range []corev1.ResourceList{st.Capacity, st.Allocatable, b.Allocatable()} {
				dongles, gpus := list["example.com/dongle"], list["example.com/gpu"]
				if dongles.Value() != tt.want || gpus.Value() != 4 {
					t.Errorf("%+v: got %v, want %d dongles and 4 gpus", tt, list, tt.want)
				}
			}
			other := existing(corev1.ConditionTrue)
			other.UID, other.Status.NodeInfo = "new", st.NodeInfo
			api.store(other)
			settle(time.Minute)
			if dongles := api.get().Status.Allocatable["example.com/dongle"]; dongles.Value() != 2 {
				t.Errorf("%+v: another object: got %v dongles, want 2", tt, dongles.Value())
			}
		})
	}
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
		b.setRuntime(readyRuntime)
		settle(time.Minute)
		if q := b.Allocatable()[corev1.ResourceCPU]; q.Value() != 4 || b.Node().Labels["mine"] != "yes" {
			t.Error("without an API server: got another Allocatable or Node, want that of the machine")
		}
		away.Store(false)
		b.setRuntime(readyRuntime)
		settle(15 * time.Second)
		if c := b.ready(); c.Status != corev1.ConditionTrue {
			t.Errorf("got the Ready condition %+v, want True", c)
		}
		if api.getLease() == nil {
			t.Error("got no lease, want one")
		}
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
		b.setRuntime(readyRuntime)
		settle(time.Second)
		if c := b.ready(); c.Status != corev1.ConditionTrue {
			t.Errorf("got %+v", c)
		}
	})
}

// TestRegistrationRefused checks that the log and the status of the agent say why the API server does not accept the
// node, and the log again when the reason changes, but not with each attempt.
func TestRegistrationRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, log := &fakeAPI{}, &journal{}
		var attempts atomic.Int64
		var reason atomic.Pointer[string]
		reason.Store(new("label a/b is not allowed"))
		api.before = func(r *http.Request) error {
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/nodes") {
				if attempts.Add(1) <= 3 {
					return fmt.Errorf("connection %d refused", attempts.Load())
				}
				return apierrors.NewForbidden(nodes, testNode, errors.New(*reason.Load()))
			}
			return nil
		}
		b := start(t, api, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(log, nil)) })
		b.setRuntime(readyRuntime)
		settle(time.Minute)
		if n, said := log.count("cannot register"), log.count("label a/b is not allowed"); n != 2 || said != 1 {
			t.Errorf("got %d lines, %d with the reason, want one of the connection and one with the reason", n, said)
		}
		shown := find(b.Reporter.Shown().Status.Conditions, corev1.NodeReady).Message
		if !strings.Contains(shown, "label a/b is not allowed") || !strings.Contains(shown, "not found") {
			t.Errorf("shown: got %q, want both answers", shown)
		}
		reason.Store(new("taint c is not allowed"))
		settle(time.Minute)
		if n := log.count("taint c is not allowed"); n != 1 {
			t.Errorf("got %d lines with the next reason, want one", n)
		}
	})
}

func TestDoesNotRegister(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		b := start(t, api, func(c *Config) { c.Register = false })
		b.setRuntime(readyRuntime)
		settle(15 * time.Second)
		if api.get() != nil || api.getLease() != nil {
			t.Fatal("got a new node, or a lease without an owner, want neither")
		}
		api.store(existing(corev1.ConditionUnknown))
		settle(10 * time.Second)
		if c := b.ready(); c.Status != corev1.ConditionTrue || api.getLease() == nil {
			t.Errorf("got %+v", c)
		}
		if n := api.get(); n.Labels["mine"] != "" {
			t.Errorf("labels of an object that another client has created: got %v", n.Labels)
		}
	})
}

// TestDeletedNodeStaysDeleted checks that the agent does not create a deleted node again, as with the kubelet.
func TestDeletedNodeStaysDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &fakeAPI{}, nil)
		b.setRuntime(readyRuntime)
		settle(time.Second)
		b.api.mu.Lock()
		b.api.node = nil
		b.api.mu.Unlock()
		settle(10 * time.Minute)
		if b.api.get() != nil {
			t.Error("got the object created again, want none")
		}
		again := existing(corev1.ConditionUnknown)
		again.UID = "new"
		b.api.store(again)
		settle(20 * time.Second)
		b.setRuntime(readyRuntime)
		settle(20 * time.Second)
		n := b.api.get()
		if b.ready().Status != corev1.ConditionTrue || n.Labels[corev1.LabelHostname] != testNode || b.Node().UID != "new" {
			t.Errorf("after another object of the same name: got %+v, want it updated and Ready", n)
		}
	})
}

func TestExternalCloud(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &fakeAPI{}, func(c *Config) { c.ExternalCloud = true })
		b.setRuntime(readyRuntime)
		settle(time.Second)
		n := b.api.get()
		if len(n.Status.Addresses) != 1 || n.Status.Addresses[0].Type != corev1.NodeHostName {
			t.Errorf("got %v, want one", n.Status.Addresses)
		}
		if len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Key != cloudTaint {
			t.Errorf("got %v, want one", n.Spec.Taints)
		}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeExternalIP, Address: "203.0.113.1"}}
		b.api.store(n)
		settle(time.Minute)
		if got := b.api.get().Status.Addresses; len(got) != 1 || got[0].Address != "203.0.113.1" {
			t.Errorf("addresses: got %v, want those of the cloud provider", got)
		}
	})
}
