package agent

import (
	"context"
	"log/slog"
	"math"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/cri"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// TestHintsAreCollected checks that hints to a busy worker do not block, and that none is lost.
func TestHintsAreCollected(t *testing.T) {
	w := newWorker(Config{Log: discard()}.complete(), runtimeFacts{}, func() {})
	w.memory.Volumes["data"] = podstate.Volume{}
	for range 1000 {
		w.notify(hintObjects)
		w.notify(hintRuntime)
		w.notify(hintOther)
	}
	if len(w.wake) != 1 {
		t.Errorf("got %d wake-ups wait, want 1", len(w.wake))
	}
	w.drain()
	if !w.facts.stale || !w.memory.Volumes["data"].Stale {
		t.Errorf("after a hint: got stale %v and %+v, want both stale", w.facts.stale, w.memory.Volumes)
	}
}

// TestUnknownNetwork checks that a sandbox stays whose runtime does not say on which network it is.
func TestUnknownNetwork(t *testing.T) {
	box := sandboxFact(&runtimeapi.PodSandboxStatus{State: runtimeapi.PodSandboxState_SANDBOX_READY})
	if why := box.Problem(&corev1.Pod{Spec: corev1.PodSpec{HostNetwork: true}}); why != "" {
		t.Errorf("problem of the sandbox: got %q, want none", why)
	}
}

// TestGivenUpCall checks that nobody looks at what the loop is still collecting for a caller who has given up.
func TestGivenUpCall(t *testing.T) {
	s := &Supervisor{loop: newLoop(nil), table: newTable(nil)}
	close(s.loop.began)
	cfg := Config{Log: discard()}.complete()
	for _, uid := range []types.UID{"1", "2"} {
		s.table.workers[uid] = &entry{source: &corev1.Pod{}, worker: newWorker(cfg, runtimeFacts{}, func() {})}
	}
	ctx, giveUp := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		(<-s.loop.calls)()
	}()
	goOn, asked := make(chan struct{}), 0
	all := s.active(ctx, func(*podstate.Stop) bool {
		if asked++; asked == 2 {
			giveUp()
			<-goOn
		}
		return true
	})
	if len(all) > 0 {
		t.Errorf("got %d of 2 pods, want none", len(all))
	}
	close(goOn)
	<-ended
}

// healthOf answers as the devices and as the resource claims of a node.
type healthOf map[string][]corev1.ResourceStatus

type deviceHealth struct {
	Devices
	healthOf
}

func (h deviceHealth) Health(types.UID) map[string][]corev1.ResourceStatus { return h.healthOf }

type claimHealth struct {
	Claims
	healthOf
}

func (h claimHealth) Health(*corev1.Pod) map[string][]corev1.ResourceStatus { return h.healthOf }

// TestHealthOfDevicesAndClaims checks that a container has the health of its devices and of its resource claims.
func TestHealthOfDevicesAndClaims(t *testing.T) {
	device, claim := corev1.ResourceStatus{Name: "vendor.com/gpu"}, corev1.ResourceStatus{Name: "claim:nic"}
	for name, test := range map[string]struct {
		devices, claims, want healthOf
		off                   bool
	}{
		"neither": {},
		"claims only": {
			claims: healthOf{"app": {claim}},
			want:   healthOf{"app": {claim}},
		},
		"both": {
			devices: healthOf{"app": {device}, "init": {device}},
			claims:  healthOf{"app": {claim}},
			want:    healthOf{"app": {device, claim}, "init": {device}},
		},
		"off": {
			devices: healthOf{"app": {device}},
			off:     true,
		},
	} {
		c := &Config{DeviceHealth: !test.off}
		c.Devices, c.Claims = deviceHealth{healthOf: test.devices}, claimHealth{healthOf: test.claims}
		if got := healthOf(c.deviceHealth(&corev1.Pod{})); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}

// TestClassOfStaticPod checks that the class of a static pod, and with it the place of its cgroup, follows from its
// manifest, also if an API server with other rules shows another one.
func TestClassOfStaticPod(t *testing.T) {
	source := &corev1.Pod{}
	source.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	mirror := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, QOSClass: corev1.PodQOSBurstable}}
	e := &entry{source: source, mirror: mirror}
	if got := podutil.QOS(e.pod()); got != corev1.PodQOSBestEffort || e.pod().Status.Phase != corev1.PodRunning {
		t.Errorf("got class %s, want BestEffort, and the status of the mirror", got)
	}
}

// TestImageOfContainer checks that a status has the name in the pod in place of the ID of an image without a tag.
func TestImageOfContainer(t *testing.T) {
	for want, image := range map[string]*runtimeapi.ImageSpec{
		"example.com/app@sha256:1": {Image: "sha256:2", UserSpecifiedImage: "example.com/app@sha256:1"},
		"example.com/app:1":        {Image: "example.com/app:1"},
	} {
		got := (&instance{}).fact(cri.Container{ContainerStatus: &runtimeapi.ContainerStatus{Image: image}}).Image
		if got != want {
			t.Errorf("got image %s, want %s", got, want)
		}
	}
}

// TestUserOfContainer checks that a status says nothing about a user whose IDs the API server refuses.
func TestUserOfContainer(t *testing.T) {
	for name, c := range map[string]struct {
		uid, gid, group int64
		shown           bool
	}{
		"largest":         {math.MaxUint32, math.MaxInt32, math.MaxInt32, true},
		"large UID":       {math.MaxUint32 + 1, 0, 0, false},
		"negative UID":    {-1, 0, 0, false},
		"large GID":       {0, 3_000_000_000, 0, false},
		"negative GID":    {0, -1, 0, false},
		"large group":     {0, 0, 3_000_000_000, false},
		"group from -1":   {0, 0, math.MaxUint32, false},
		"of root, in all": {0, 0, 0, true},
	} {
		got := (&instance{}).fact(cri.Container{ContainerStatus: &runtimeapi.ContainerStatus{
			User: &runtimeapi.ContainerUser{Linux: &runtimeapi.LinuxContainerUser{
				Uid: c.uid, Gid: c.gid, SupplementalGroups: []int64{0, c.group}}},
		}}).User
		if shown := got != nil && got.Linux.UID == c.uid && got.Linux.GID == c.gid; shown != c.shown {
			t.Errorf("%s: got user %+v, want it shown: %v", name, got, c.shown)
		}
	}
	if got := (&instance{}).fact(cri.Container{ContainerStatus: &runtimeapi.ContainerStatus{}}).User; got != nil {
		t.Errorf("without a user: got %+v, want none", got)
	}
}
