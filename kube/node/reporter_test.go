package node

import (
	"context"
	"errors"
	"fmt"
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
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestRestartKeepsReady checks that an object that is Ready stays Ready until the runtime has answered, but not longer
// than three quarters of the lease duration.
func TestRestartKeepsReady(t *testing.T) {
	since := metav1.NewTime(time.Unix(1000, 0)) // see existing
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		api.store(existing(corev1.ConditionTrue))
		b := start(t, api, nil)
		settle(29 * time.Second)
		if c := b.ready(); c.Status != corev1.ConditionTrue || !c.LastTransitionTime.Equal(&since) {
			t.Errorf("after 29 s: got %+v, want True", c)
		}
		settle(15 * time.Second)
		if c := b.ready(); c.Status != corev1.ConditionFalse {
			t.Errorf("after 44 s: got %+v, want False", c)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		api.store(existing(corev1.ConditionTrue))
		b := start(t, api, nil)
		settle(5 * time.Second)
		b.setRuntime(readyRuntime)
		settle(20 * time.Second)
		if c := b.ready(); c.Status != corev1.ConditionTrue || !c.LastTransitionTime.Equal(&since) {
			t.Errorf("after the answer: got %+v, want True", c)
		}
	})
}

// TestRestartKeepsPressure checks that a restarted agent shows a pressure that the node had until it knows better, so
// that the scheduler sends no pods in between, and that it knows one without the other.
func TestRestartKeepsPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		since := metav1.NewTime(time.Unix(1000, 0))
		old := existing(corev1.ConditionTrue)
		for _, c := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure} {
			old.Status.Conditions = append(old.Status.Conditions,
				corev1.NodeCondition{Type: c, Status: corev1.ConditionTrue, LastTransitionTime: since})
		}
		api := &fakeAPI{}
		api.store(old)
		b := start(t, api, nil)
		b.setRuntime(readyRuntime)
		expect := func(when string, memory, disk, pid corev1.ConditionStatus) {
			t.Helper()
			settle(time.Minute)
			all := b.api.get().Status.Conditions
			for c, want := range map[corev1.NodeConditionType]corev1.ConditionStatus{
				corev1.NodeMemoryPressure: memory, corev1.NodeDiskPressure: disk, corev1.NodePIDPressure: pid,
			} {
				got := find(all, c)
				if got.Status != want || want == corev1.ConditionTrue && !got.LastTransitionTime.Equal(&since) {
					t.Errorf("%s: got %+v, want %s", when, got, want)
				}
			}
		}
		expect("nothing is known", corev1.ConditionTrue, corev1.ConditionTrue, corev1.ConditionFalse)
		b.SetPressure(map[corev1.NodeConditionType]bool{corev1.NodeMemoryPressure: true, corev1.NodePIDPressure: false})
		expect("memory is known", corev1.ConditionTrue, corev1.ConditionTrue, corev1.ConditionFalse)
		b.SetPressure(pressure())
		expect("all is known", corev1.ConditionFalse, corev1.ConditionFalse, corev1.ConditionFalse)
	})
}

// TestIdleRequests checks that an idle node sends a patch every five minutes, renews the lease every ten seconds, and
// sends nothing else.
func TestIdleRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		b := start(t, api, nil)
		b.setRuntime(readyRuntime)
		settle(time.Second)
		api.seen()
		for range 360 { // an hour in which the runtime answers each 10 s
			time.Sleep(10 * time.Second)
			b.setRuntime(readyRuntime)
		}
		count := map[string]int{}
		for _, r := range api.seen() {
			count[r]++
		}
		if n := count["PATCH nodes"]; n < 11 || n > 13 {
			t.Errorf("got %d patches in an hour, want 12", n)
		}
		if n := count["PUT leases"]; n < 350 || n > 370 || len(count) != 2 {
			t.Errorf("requests in an hour: got %v, want 360 lease updates and the patches", count)
		}
		for _, p := range api.patches {
			more := strings.Contains(p, "capacity") || strings.Contains(p, "nodeInfo") || strings.Contains(p, "images")
			if more || !strings.Contains(p, "lastHeartbeatTime") {
				t.Errorf("heartbeat: got %s, want only conditions", p)
			}
		}
	})
}

// TestRuntimeUnavailable checks that the node is not Ready after the runtime has not answered for 30 s, as with the
// kubelet, and Ready again at the next answer.
func TestRuntimeUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &fakeAPI{}, nil)
		b.setRuntime(readyRuntime)
		settle(time.Second)
		settle(25 * time.Second)
		if c := b.ready(); c.Status != corev1.ConditionTrue {
			t.Errorf("after 25 s: got %+v, want True", c)
		}
		settle(16 * time.Second)
		if c := b.ready(); c.Status != corev1.ConditionFalse || c.Message != "container runtime is down" {
			t.Errorf("after 41 s: got %+v, want False", c)
		}
		b.setRuntime(readyRuntime)
		settle(time.Millisecond)
		if c := b.ready(); c.Status != corev1.ConditionTrue {
			t.Errorf("got %+v", c)
		}
	})
}

// TestRuntimeWithoutLists checks that a runtime that answers but no longer lists its pods makes the node not Ready,
// with the kubelet's message, until it lists them again.
func TestRuntimeWithoutLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &fakeAPI{}, nil)
		answer := func(d time.Duration) {
			for range int(d / (10 * time.Second)) {
				b.Reporter.setRuntime(readyRuntime)
				settle(10 * time.Second)
			}
		}
		answer(2 * time.Minute)
		b.RuntimeListed()
		answer(3*time.Minute + 50*time.Second)
		if c := b.ready(); c.Status != corev1.ConditionTrue {
			t.Errorf("before the end of the time: got %+v, want True", c)
		}
		answer(20 * time.Second)
		const want = "PLEG is not healthy: pleg was last seen active 4m0s ago; threshold is 4m0s"
		if c := b.ready(); c.Status != corev1.ConditionFalse || c.Message != want {
			t.Errorf("without lists: got %+v, want False, %s", c, want)
		}
		b.RuntimeListed()
		settle(time.Millisecond)
		if c := b.ready(); c.Status != corev1.ConditionTrue {
			t.Errorf("with a list: got %+v, want True", c)
		}
	})
}

func TestPressureAndShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &fakeAPI{}, nil)
		b.setRuntime(readyRuntime)
		settle(time.Second)
		b.reasons()
		b.SetPressure(pressure(corev1.NodeMemoryPressure, corev1.NodePIDPressure))
		settle(time.Millisecond)
		n := b.api.get()
		memory := find(n.Status.Conditions, corev1.NodeMemoryPressure)
		if memory.Status != corev1.ConditionTrue || memory.Reason != "KubeletHasInsufficientMemory" {
			t.Errorf("got %+v, want True", memory)
		}
		disk := find(n.Status.Conditions, corev1.NodeDiskPressure)
		if disk.Status != corev1.ConditionFalse {
			t.Errorf("got %+v, want False", disk)
		}
		if got := b.reasons(); !slices.Equal(got, []string{"NodeHasInsufficientMemory", "NodeHasInsufficientPID"}) {
			t.Errorf("events: got %v", got)
		}
		b.SetShutdown(errors.New("node is shutting down"))
		settle(time.Millisecond)
		if c := b.ready(); c.Status != corev1.ConditionFalse || c.Message != "node is shutting down" {
			t.Errorf("got %+v", c)
		}
	})
}

// TestStorageProblem checks that a new node is not Ready before its storage objects exist, with the reason, and that a
// node that was Ready stays so meanwhile after a restart of the agent, if it does not take long.
func TestStorageProblem(t *testing.T) {
	for name, c := range map[string]struct {
		before      *corev1.Node
		first, last corev1.ConditionStatus
	}{
		"new":     {nil, corev1.ConditionFalse, corev1.ConditionFalse},
		"restart": {existing(corev1.ConditionTrue), corev1.ConditionTrue, corev1.ConditionFalse},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &fakeAPI{}
				if c.before != nil {
					api.store(c.before)
				}
				b := start(t, api, nil)
				b.SetStorage(errors.New("CSINode is not yet initialized"))
				b.setRuntime(readyRuntime)
				settle(time.Second)
				if got := b.ready(); got.Status != c.first {
					t.Errorf("at the start: got %+v, want %s", got, c.first)
				}
				for range 4 {
					settle(10 * time.Second)
					b.setRuntime(readyRuntime)
				}
				if got := b.ready(); got.Status != c.last || got.Message != "CSINode is not yet initialized" {
					t.Errorf("after 41 s: got %+v, want %s with the reason", got, c.last)
				}
				b.SetStorage(nil)
				settle(time.Millisecond)
				if got := b.ready(); got.Status != corev1.ConditionTrue {
					t.Errorf("when they exist: got %+v, want True", got)
				}
			})
		})
	}
}

// TestUnknownIsCorrected checks that the agent sends its status at once after the control plane has set the Ready
// condition to Unknown.
func TestUnknownIsCorrected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &fakeAPI{}, nil)
		b.setRuntime(readyRuntime)
		settle(time.Second)
		n := b.api.get()
		c := find(n.Status.Conditions, corev1.NodeReady)
		c.Status, c.Reason = corev1.ConditionUnknown, "NodeStatusUnknown"
		n.Spec.Unschedulable = true
		b.api.store(n)
		settle(time.Millisecond)
		if c := b.ready(); c.Status != corev1.ConditionTrue || !b.Node().Spec.Unschedulable {
			t.Errorf("got %+v", c)
		}
		if !slices.Contains(b.reasons(), "NodeNotSchedulable") {
			t.Error("got no event NodeNotSchedulable, want one")
		}
	})
}

// TestCordonedNode checks that an agent that starts on a cordoned node records that, as the kubelet does.
func TestCordonedNode(t *testing.T) {
	for _, cordoned := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			api, n := &fakeAPI{}, existing(corev1.ConditionTrue)
			n.Spec.Unschedulable = cordoned
			api.store(n)
			b := start(t, api, nil)
			b.setRuntime(readyRuntime)
			settle(time.Second)
			got := b.reasons()
			if slices.Contains(got, "NodeNotSchedulable") != cordoned || slices.Contains(got, "NodeSchedulable") {
				t.Errorf("cordoned %t: got the events %v, want NodeNotSchedulable only if it is cordoned", cordoned, got)
			}
		})
	}
}

// TestStandalone checks that Node has addresses and conditions without an API server.
func TestStandalone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t)
		changes := make(chan *corev1.Node, 100)
		cfg.Changed = func(n *corev1.Node) { changes <- n }
		r, err := New(cfg, nil, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		r.setRuntime(readyRuntime)
		settle(time.Second)
		n := r.Node()
		if len(n.Status.Addresses) != 2 || n.Status.Addresses[0].Address != testNode {
			t.Errorf("addresses: got %+v, want two", n.Status.Addresses)
		}
		if n.Labels["mine"] != "yes" || n.UID != "" {
			t.Errorf("got labels %v, UID %q", n.Labels, n.UID)
		}
		if c := find(n.Status.Conditions, corev1.NodeReady); c == nil || c.Status != corev1.ConditionTrue {
			t.Errorf("conditions: got %+v, want Ready", n.Status.Conditions)
		}
		before := len(changes)
		for range 10 {
			settle(10 * time.Second)
			r.setRuntime(readyRuntime)
		}
		if after := len(changes); after != before || before == 0 {
			t.Errorf("calls of Changed: got %d and %d more without a change, want none more", before, after-before)
		}
		cancel()
		<-done
	})
}

// TestUserNamespaceIsShownOnce checks that the node says whether it runs in a user namespace, and does not say it again
// and again to an API server that drops the field.
func TestUserNamespaceIsShownOnce(t *testing.T) {
	c := Config{ShowUserNamespace: true}
	info := func(old *bool, f facts) *bool {
		n := &corev1.Node{}
		n.Status.NodeInfo.RunningInUserNamespace = old
		status, _ := c.status(n, f, time.Now())
		return status.NodeInfo.RunningInUserNamespace
	}
	inside := facts{machine: Machine{UserNamespace: true}}
	if got := info(nil, inside); got != nil {
		t.Errorf("the API server dropped it: got %v, want nil", *got)
	}
	if got := info(new(false), inside); got == nil || *got {
		t.Errorf("the object has it: got %v, want it unchanged", got)
	}
	inside.atStart = true
	if got := info(nil, inside); got == nil || !*got {
		t.Errorf("at the start: got %v, want true", got)
	}
	c.ShowUserNamespace = false
	if got := info(nil, inside); got != nil {
		t.Errorf("with the gate off: got %v, want nil", *got)
	}
}

// TestBindMountOptionsAreDeclared checks that the node declares them only while the runtime has them, and as before
// until the runtime has answered.
func TestBindMountOptionsAreDeclared(t *testing.T) {
	c := Config{DeclaredFeatures: []string{"A", "VolumeBindMountOptions"}}
	for _, has := range []bool{false, true} {
		runtime := runtimeOf(&runtimeapi.VersionResponse{}, &runtimeapi.StatusResponse{
			Features: &runtimeapi.RuntimeFeatures{MountOptions: has},
		})
		n := &corev1.Node{}
		n.Status, _ = c.status(n, facts{health: health{runtime: runtime, answered: time.Now()}}, time.Now())
		restarted, _ := c.status(n, facts{}, time.Now())
		for when, s := range map[string]corev1.NodeStatus{"it has answered": n.Status, "a restart": restarted} {
			if got := s.DeclaredFeatures; slices.Contains(got, "VolumeBindMountOptions") != has || got[0] != "A" {
				t.Errorf("the runtime has them: %v, after %s: got %q declared", has, when, got)
			}
		}
	}
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
		b.setRuntime(readyRuntime)
		settle(time.Second)
		b.reasons()
		broken.Store(true)
		b.SetPressure(pressure(corev1.NodeDiskPressure))
		settle(3 * time.Second)
		if len(b.reasons()) != 0 {
			t.Error("got an event about a change that was not sent")
		}
		broken.Store(false)
		settle(5 * time.Second)
		if got := b.reasons(); !slices.Equal(got, []string{"NodeHasDiskPressure"}) {
			t.Errorf("events: got %v", got)
		}
	})
}

func TestImagesInStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &fakeAPI{}, func(c *Config) { c.MaxImages = 2 })
		b.setRuntime(readyRuntime)
		b.SetImages([]*runtimeapi.Image{
			{RepoDigests: []string{"a@sha256:1"}, RepoTags: []string{"a:1"}, Size: 10},
			{RepoTags: []string{"b:1", "b:2", "b:3", "b:4", "b:5", "b:6"}, Size: 30},
			{Size: 40}, // its tag went to another image; "names: null" breaks clients and kubectl edit
			{RepoTags: []string{"c:1"}, Size: 20},
		})
		settle(10 * time.Second)
		got := b.api.get().Status.Images
		if len(got) != 2 || got[0].SizeBytes != 30 || len(got[0].Names) != 5 || got[1].Names[0] != "c:1" {
			t.Errorf("got %+v, want two", got)
		}
		settle(time.Minute)
		b.api.seen()
		for i := range 10 { // pulls
			b.SetImages([]*runtimeapi.Image{{RepoTags: []string{fmt.Sprint("d:", i)}, Size: 10}})
			settle(100 * time.Millisecond)
		}
		if n := strings.Count(fmt.Sprint(b.api.seen()), "PATCH nodes"); n > 1 {
			t.Errorf("ten pulls within a second: got %d patches, want at most one", n)
		}
		b.SetImages(nil)
		settle(10 * time.Second)
		if got := b.api.get().Status.Images; len(got) != 0 {
			t.Errorf("got %+v, want none", got)
		}
	})
}

// TestPlainVersion checks versions of runtimes against what the kubelet shows of them.
func TestPlainVersion(t *testing.T) {
	for reported, want := range map[string]string{
		"v2.4.2":         "2.4.2",
		"2.0.0-rc.1+abc": "2.0.0-rc.1+abc",
		"1.6.20~ds1":     "1.6.20",
		"unknown":        "unknown",
	} {
		if got := plainVersion(reported); got != want {
			t.Errorf("%s: got %q, want %q", reported, got, want)
		}
	}
}

// TestRestoredNode checks that the agent takes an older version of the Node object from the watch: etcd was restored
// from a backup. An older version of before the agent's own patch changes nothing.
func TestRestoredNode(t *testing.T) {
	node := func(version, team string) *corev1.Node {
		n := existing(corev1.ConditionTrue)
		n.ResourceVersion, n.Labels = version, map[string]string{"team": team}
		return n
	}
	r := &Reporter{cfg: Config{Changed: func(*corev1.Node) {}}, appeared: make(chan struct{})}
	r.takeWatched(node("7", "before"))
	r.take(node("9", "patched"))
	for _, c := range []struct{ version, team, want string }{
		{"8", "between", "patched"},
		{"9", "again", "patched"},
		{"4", "restored", "restored"},
		{"5", "next", "next"},
	} {
		r.takeWatched(node(c.version, c.team))
		if got := r.newest.Load().Labels["team"]; got != c.want {
			t.Errorf("after version %s: got %q, want %q", c.version, got, c.want)
		}
	}
}
