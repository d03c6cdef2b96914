package node

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

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

// TestSilentRuntime: a new node registers after a moment although the runtime says nothing, and then says why it is
// not Ready.
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
