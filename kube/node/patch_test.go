package node

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// randomNode returns a node with random values in all fields that a patch may change.
func randomNode(r *rand.Rand) *corev1.Node {
	some := func(values ...string) map[string]string {
		m := map[string]string{}
		for _, v := range values {
			if r.IntN(2) == 0 {
				m[v] = values[r.IntN(len(values))]
			}
		}
		return m
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: some("a", "b", "c"), Annotations: some("x", "y")}}
	s := &n.Status
	s.Capacity, s.Allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{"cpu", "memory", "hugepages-2Mi", "example.com/x"} {
		if r.IntN(3) > 0 {
			s.Capacity[name] = *resource.NewQuantity(r.Int64N(3), resource.DecimalSI)
			s.Allocatable[name] = *resource.NewQuantity(r.Int64N(3), resource.DecimalSI)
		}
	}
	for _, t := range []corev1.NodeAddressType{"InternalIP", "InternalIP", "Hostname", "ExternalIP"} {
		if r.IntN(2) == 0 {
			s.Addresses = append(s.Addresses, corev1.NodeAddress{Type: t, Address: string(rune('a' + r.IntN(3)))})
		}
	}
	for i := range r.IntN(3) {
		s.Images = append(s.Images, corev1.ContainerImage{
			Names:     []string{string(rune('a' + r.IntN(3)))},
			SizeBytes: int64(i),
		})
		s.VolumesInUse = append(s.VolumesInUse, corev1.UniqueVolumeName(rune('a'+r.IntN(3))))
		s.DeclaredFeatures = append(s.DeclaredFeatures, string(rune('A'+r.IntN(3))))
	}
	if r.IntN(2) == 0 {
		yes := r.IntN(2) == 0
		swap := r.Int64N(3)
		s.NodeInfo.Swap = &corev1.NodeSwapStatus{Capacity: &swap}
		s.Features = &corev1.NodeFeatures{SupplementalGroupsPolicy: &yes}
		s.RuntimeHandlers = []corev1.NodeRuntimeHandler{{
			Name:     "runc",
			Features: &corev1.NodeRuntimeHandlerFeatures{UserNamespaces: &yes},
		}}
	}
	s.NodeInfo.KernelVersion = string(rune('a' + r.IntN(3)))
	s.DaemonEndpoints.KubeletEndpoint.Port = r.Int32N(2)
	return n
}

// TestPatchResultsInWantedNode applies patches between random nodes with the API server's own strategic merge.
func TestPatchResultsInWantedNode(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	own := []corev1.NodeCondition{{
		Type:              corev1.NodeReady,
		Status:            corev1.ConditionTrue,
		LastHeartbeatTime: metav1.NewTime(time.Unix(1, 0)),
	}}
	for i := range 2000 {
		old, wanted := randomNode(r), randomNode(r)
		foreign := corev1.NodeCondition{Type: "Other", Status: corev1.ConditionTrue}
		old.Status.Conditions = []corev1.NodeCondition{foreign}
		patch, err := statusPatch(old, wanted, own)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(old)
		if err != nil {
			t.Fatal(err)
		}
		merged, err := strategicpatch.StrategicMergePatch(raw, patch, corev1.Node{})
		if err != nil {
			t.Fatalf("%d: %v\n%s", i, err, patch)
		}
		got := &corev1.Node{}
		if err := json.Unmarshal(merged, got); err != nil {
			t.Fatal(err)
		}
		if len(got.Status.Conditions) != 2 {
			t.Fatalf("node %d: got conditions %+v, want 2", i, got.Status.Conditions)
		}
		got.Status.Conditions, wanted.Status.Conditions = nil, nil
		if !sameStatus(got.Status, wanted.Status) ||
			!cmp.Equal(got.Labels, wanted.Labels, emptyIsNil) ||
			!cmp.Equal(got.Annotations, wanted.Annotations, emptyIsNil) {
			t.Fatalf("node %d: after the patch %s (-want +got):\n%s", i, patch, cmp.Diff(wanted, got))
		}
	}
}

var emptyIsNil = cmp.Transformer("empty", func(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	return m
})

// TestPatchHasOnlyOwnFields checks that a patch changes only labels, annotations and status.
func TestPatchHasOnlyOwnFields(t *testing.T) {
	old, wanted := existing(corev1.ConditionTrue), existing(corev1.ConditionTrue)
	wanted.OwnerReferences = []metav1.OwnerReference{{Name: "x"}}
	wanted.Finalizers = []string{"x"}
	wanted.Spec.Unschedulable = true
	wanted.Labels["l"] = "x"
	patch, err := statusPatch(old, wanted, nil)
	if err != nil || string(patch) != `{"metadata":{"labels":{"l":"x"}},"status":{"conditions":null}}` {
		t.Errorf("got %s, %v", patch, err)
	}
}

func TestHeartbeatPatchIsSmall(t *testing.T) {
	n := existing(corev1.ConditionTrue)
	for i := range 50 {
		image := corev1.ContainerImage{Names: []string{strings.Repeat("x", 100)}, SizeBytes: int64(i)}
		n.Status.Images = append(n.Status.Images, image)
	}
	patch, err := statusPatch(n, n, n.Status.Conditions)
	if err != nil || len(patch) > 600 {
		t.Errorf("got a patch of %d bytes, want at most 600: %s, %v", len(patch), patch, err)
	}
}
