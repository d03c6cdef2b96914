package node

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/nodedeclaredfeatures/features"
	"k8s.io/component-helpers/nodedeclaredfeatures/types"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/internal/release"
)

// undeclared are the features that nodelet does not have. The kubelet declares them if their gates are on.
var undeclared = []string{
	"DRANodeAllocatableResources",
	"DRAOptionalNodeOperations",
	"InPlacePodVerticalScalingMemoryBackedVolumes",
	"UserNamespacesHostNetworkSupport",
}

// gates are the feature gates of a configuration.
type gates struct{ *config.Config }

func (g gates) Enabled(name string) bool { return g.Gate(name) }

// TestDeclaredFeatures compares declaredFeatures with the registry of Kubernetes, with the default feature gates, and
// with the gate of each feature on and off: the scheduler and the API server believe a node in both directions.
func TestDeclaredFeatures(t *testing.T) {
	sets := []map[string]bool{nil}
	for _, f := range features.AllFeatures {
		sets = append(sets, map[string]bool{f.Name(): true}, map[string]bool{f.Name(): false})
	}
	differ := false
	standard := declaredFeatures(&config.Config{})
	for _, set := range sets {
		c := &config.Config{}
		c.Kubelet.FeatureGates = set
		got, want := declaredFeatures(c), kubeletDeclares(c)
		if !slices.Equal(got, want) {
			t.Errorf("gates %v: got %q declared, want %q", set, got, want)
		}
		differ = differ || !slices.Equal(got, standard)
	}
	if !differ {
		t.Error("with the gates: got the same settings, want others")
	}
}

// kubeletDeclares returns what the kubelet declares, without undeclared.
func kubeletDeclares(c *config.Config) (names []string) {
	node := &types.NodeConfiguration{
		FeatureGates:    gates{c},
		Version:         version.MustParseSemantic(release.Kubernetes),
		RuntimeFeatures: types.RuntimeFeatures{UserNamespacesHostNetwork: true, MountOptions: true},
	}
	for _, f := range features.AllFeatures {
		latest := f.MaxVersion()
		gone := latest != nil && latest.LessThan(node.Version)
		if !gone && f.Discover(node) && !slices.Contains(undeclared, f.Name()) {
			names = append(names, f.Name())
		}
	}
	slices.Sort(names)
	return names
}

// TestTooMuchReserved checks that a configuration which keeps more from pods than the machine has is refused, with the
// resource, both amounts and the fields.
func TestTooMuchReserved(t *testing.T) {
	cfg := testConfig(t)
	cfg.Reserved = []corev1.ResourceList{
		{corev1.ResourceMemory: resource.MustParse("5Gi"), "example.com/unknown": resource.MustParse("1")},
		{corev1.ResourceMemory: resource.MustParse("2Gi")},
	}
	threshold := resource.MustParse("1Gi")
	cfg.EvictionHard = []EvictionThreshold{{Resource: corev1.ResourceMemory, Quantity: &threshold}}
	if _, err := New(cfg, nil, nil, nil); err != nil {
		t.Errorf("all of the memory reserved: got %v, want no error", err)
	}
	cfg.Reserved[1][corev1.ResourceMemory] = resource.MustParse("100Gi")
	const want = "kubeReserved, systemReserved and evictionHard keep 106Gi of memory from pods, but this machine has " +
		"8Gi: lower them"
	if _, err := New(cfg, nil, nil, nil); err == nil || err.Error() != want {
		t.Errorf("too much: got %v, want %s", err, want)
	}
}

// TestEvictionHard checks that evictionHard alone reduces Allocatable, not a soft threshold without a grace period.
func TestEvictionHard(t *testing.T) {
	c, err := config.Load([]string{
		"--hostname-override=n", "--eviction-hard=memory.available<1Gi,pid.available<5%",
		"--eviction-soft=memory.available<3Gi,nodefs.available<10%",
		"--eviction-soft-grace-period=memory.available=0s,nodefs.available=0s",
	})
	if err != nil {
		t.Fatal(err)
	}
	got := Settings(c).EvictionHard
	if len(got) != 1 || got[0].Resource != corev1.ResourceMemory || got[0].Quantity.String() != "1Gi" {
		t.Errorf("got %v, want 1Gi of memory", got)
	}
}
