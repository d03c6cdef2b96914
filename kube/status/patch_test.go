package status

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// TestPatchesGiveWantedStatus draws pairs of statuses and asks the API server's own merge whether the patch from one to
// the other leads there, and leaves alone what belongs to others.
func TestPatchesGiveWantedStatus(t *testing.T) {
	for seed := range uint64(4000) {
		r := rand.New(rand.NewPCG(seed, 1))
		from, to := randomStatus(r), randomStatus(r)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Status: from}
		body, err := patchFor("u", &from, &to)
		if err != nil {
			t.Fatal(err)
		}
		if (body == nil) != unchanged(&from, &to) {
			t.Fatalf("seed %d: got patch %s, but unchanged says %v, want them to agree", seed, body, unchanged(&from, &to))
		}
		if body == nil {
			continue
		}
		got, err := applyPatch(pod, body)
		if err != nil {
			t.Fatalf("seed %d: %s: %v", seed, body, err)
		}
		if !unchanged(&got.Status, &to) {
			again, _ := patchFor("u", &got.Status, &to)
			t.Fatalf("seed %d: after %s there is still %s to send, want nothing", seed, body, again)
		}
		want := expected(from, to)
		sortConditions(&got.Status)
		sortConditions(&want)
		if !apiequality.Semantic.DeepEqual(clean(got.Status), clean(want)) {
			t.Fatalf("seed %d: patch %s: want (-), got (+):\n%s", seed, body, cmp.Diff(clean(want), clean(got.Status)))
		}
	}
}

// TestPatchFromStaleBaseKeepsWhatItSends checks that a patch made from a stale base must never leave a mix of old and
// new in what a node agent owns.
func TestPatchFromStaleBaseKeepsWhatItSends(t *testing.T) {
	patches := 0
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 2))
		server, base := randomStatus(r), randomStatus(r)
		to := randomStatus(r)
		body, err := patchFor("u", &base, &to)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if body == nil {
			continue
		}
		patches++
		got, err := applyPatch(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Status: server}, body)
		if err != nil {
			t.Fatalf("seed %d: %s: %v", seed, body, err)
		}
		for _, c := range to.Conditions {
			if old := podutil.Condition(base.Conditions, c.Type); !podutil.OwnsCondition(c.Type) || sameCondition(old, &c) {
				continue
			}
			if !sameCondition(podutil.Condition(got.Status.Conditions, c.Type), &c) {
				t.Fatalf("seed %d: condition %s is %+v after %s", seed, c.Type, podutil.Condition(got.Status.Conditions, c.Type),
					body)
			}
		}
		if !slices.Equal(base.PodIPs, to.PodIPs) && !slices.Equal(got.Status.PodIPs, to.PodIPs) {
			t.Fatalf("seed %d: podIPs %v, want %v after %s", seed, got.Status.PodIPs, to.PodIPs, body)
		}
	}
	if patches < 1000 {
		t.Errorf("got %d patches, want at least 1000", patches)
	}
}

func TestOthersConditionsAreNeverSent(t *testing.T) {
	from := corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
		{Type: "example.com/gate", Status: corev1.ConditionTrue},
		{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI"},
	}}
	to := corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "wrong"},
		{Type: "example.com/gate", Status: corev1.ConditionFalse},
		{Type: "example.com/other", Status: corev1.ConditionFalse},
		{Type: corev1.DisruptionTarget, Status: corev1.ConditionFalse},
	}}
	if body, err := patchFor("u", &from, &to); body != nil || err != nil {
		t.Errorf("got patch %s, error %v, want none", body, err)
	}
	to.Conditions[0].ObservedGeneration = 3
	body, err := patchFor("u", &from, &to)
	if err != nil || !strings.Contains(string(body), `"status":"True","observedGeneration":3`) {
		t.Errorf("got patch %s, error %v, want PodScheduled still True with observedGeneration 3", body, err)
	}
}

func TestPatchHasNothingButTheChange(t *testing.T) {
	pod := testPod("a")
	to := *pod.Status.DeepCopy()
	to.Phase = corev1.PodRunning
	body, err := patchFor(`u"1`, &pod.Status, &to)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"metadata":{"uid":"u\"1"},"status":{"phase":"Running"}}`; string(body) != want {
		t.Errorf("patch\n%s, want\n%s", body, want)
	}
	if !json.Valid(body) {
		t.Errorf("got %s, want JSON", body)
	}
}

// expected is what the server should hold after to was published over from.
func expected(from, to corev1.PodStatus) corev1.PodStatus {
	want := *to.DeepCopy()
	want.NominatedNodeName, want.ResourceClaimStatuses = from.NominatedNodeName, from.ResourceClaimStatuses
	want.ExtendedResourceClaimStatus = from.ExtendedResourceClaimStatus
	want.QOSClass = from.QOSClass // immutable
	want.Conditions = nil
	for _, c := range from.Conditions {
		if !podutil.OwnsCondition(c.Type) && podutil.Condition(to.Conditions, c.Type) == nil {
			want.Conditions = append(want.Conditions, c)
		}
	}
	for _, c := range to.Conditions {
		old := podutil.Condition(from.Conditions, c.Type)
		keep := sharedCondition(&from, &to, c)
		switch {
		case keep == nil && old == nil:
		case keep == nil || sameCondition(old, keep):
			want.Conditions = append(want.Conditions, *old)
		default:
			want.Conditions = append(want.Conditions, *keep)
		}
	}
	return want
}

func clean(s corev1.PodStatus) corev1.PodStatus {
	if len(s.Conditions) == 0 {
		s.Conditions = nil
	}
	return s
}

func sortConditions(s *corev1.PodStatus) {
	slices.SortFunc(s.Conditions, func(a, b corev1.PodCondition) int {
		return strings.Compare(string(a.Type), string(b.Type))
	})
}

func randomStatus(r *rand.Rand) corev1.PodStatus {
	pick := func(choices ...string) string { return choices[r.IntN(len(choices))] }
	at := func() metav1.Time {
		if r.IntN(3) == 0 {
			return metav1.Time{}
		}
		return metav1.NewTime(time.Unix(1700000000+r.Int64N(4), 0))
	}
	s := corev1.PodStatus{
		ObservedGeneration: 1 + r.Int64N(2), Phase: corev1.PodPhase(pick("Pending", "Running", "Failed", "Succeeded")),
		Message: pick("", "m"), Reason: pick("", "r"), HostIP: pick("", "10.0.0.1"), PodIP: pick("", "10.1.0.1"),
		QOSClass: corev1.PodQOSClass(pick("", "Burstable")), NominatedNodeName: pick("", "n1"),
	}
	if t := at(); !t.IsZero() {
		s.StartTime = &t
	}
	for _, t := range []corev1.PodConditionType{
		corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled, corev1.DisruptionTarget, corev1.PodResizePending,
		"x.io/gate",
	} {
		if r.IntN(2) == 0 {
			s.Conditions = append(s.Conditions, corev1.PodCondition{
				Type: t, Status: corev1.ConditionStatus(pick("True", "False")), Reason: pick("", "R1", "R2"),
				Message: pick("", "msg"), LastProbeTime: at(), LastTransitionTime: at(), ObservedGeneration: r.Int64N(3)})
		}
	}
	r.Shuffle(len(s.Conditions), func(i, j int) { s.Conditions[i], s.Conditions[j] = s.Conditions[j], s.Conditions[i] })
	for _, ip := range []string{"10.1.0.1", "10.1.0.2", "fd00::1"} {
		if r.IntN(2) == 0 {
			s.PodIPs = append([]corev1.PodIP{{IP: ip}}, s.PodIPs...)
			s.HostIPs = append(s.HostIPs, corev1.HostIP{IP: ip})
		}
	}
	s.ContainerStatuses, s.InitContainerStatuses = randomContainers(r), randomContainers(r)
	s.AllocatedResources = randomResources(r)
	if r.IntN(2) == 0 {
		s.Resources = &corev1.ResourceRequirements{Limits: randomResources(r), Requests: randomResources(r)}
	}
	if r.IntN(2) == 0 {
		name := pick("claim-1", "claim-2")
		s.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "c", ResourceClaimName: &name}}
	}
	return s
}

func randomResources(r *rand.Rand) corev1.ResourceList {
	var list corev1.ResourceList
	for _, name := range []corev1.ResourceName{"cpu", "memory", "example.com/gpu"} {
		if r.IntN(2) == 0 {
			if list == nil {
				list = corev1.ResourceList{}
			}
			list[name] = resource.MustParse([]string{"1", "1000m", "2", "64Mi"}[r.IntN(4)])
		}
	}
	return list
}

func randomContainers(r *rand.Rand) []corev1.ContainerStatus {
	var list []corev1.ContainerStatus
	for i := range r.IntN(3) {
		started := r.IntN(2) == 0
		c := corev1.ContainerStatus{Name: fmt.Sprint("c", i), Ready: started, Started: &started, ImageID: "sha256:1"}
		switch r.IntN(3) {
		case 0:
			c.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Unix(1700000000, 0))}
		case 1:
			c.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: r.Int32N(2), Reason: "Completed"}
		case 2:
			c.State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
		}
		c.AllocatedResources = randomResources(r)
		list = append(list, c)
	}
	return list
}

func fullStatus(containers int) corev1.PodStatus {
	now := metav1.NewTime(time.Unix(1700000000, 0))
	s := corev1.PodStatus{Phase: corev1.PodRunning, HostIP: "10.0.0.1", PodIP: "10.1.0.1", StartTime: &now,
		PodIPs: []corev1.PodIP{{IP: "10.1.0.1"}}, HostIPs: []corev1.HostIP{{IP: "10.0.0.1"}}, QOSClass: "Burstable",
		ObservedGeneration: 1}
	for _, t := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady,
		corev1.ContainersReady, corev1.PodScheduled} {
		s.Conditions = append(s.Conditions, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue,
			LastTransitionTime: now, ObservedGeneration: 1})
	}
	started := true
	for i := range containers {
		res := corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("64Mi")}
		s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{
			Name: fmt.Sprint("c", i), Ready: true, Started: &started, Image: "registry.k8s.io/pause:3.10",
			ImageID: "sha256:" + strings.Repeat("a", 64), ContainerID: "containerd://" + strings.Repeat("b", 64),
			State:              corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
			AllocatedResources: res, Resources: &corev1.ResourceRequirements{Requests: res, Limits: res},
		})
	}
	return s
}

func BenchmarkPatchReady(b *testing.B) {
	from, to := fullStatus(2), fullStatus(2)
	to.Conditions[2].Status, to.ContainerStatuses[0].Ready = corev1.ConditionFalse, false
	b.ReportAllocs()
	for b.Loop() {
		if body, err := patchFor(types.UID("u"), &from, &to); body == nil || err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUnchanged(b *testing.B) {
	from, to := fullStatus(2), fullStatus(2)
	b.ReportAllocs()
	for b.Loop() {
		if !unchanged(&from, &to) {
			b.Fatal("differs")
		}
	}
}
