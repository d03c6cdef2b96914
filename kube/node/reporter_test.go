package node

import (
	"context"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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

// TestRuntimeGoesAway: 30 s of silence, as with the kubelet, then NotReady; a word of the runtime brings it back at
// once.
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
