package node

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/nodedeclaredfeatures/features"
	"k8s.io/component-helpers/nodedeclaredfeatures/types"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/internal/release"
)

// undeclared are the features that the kubelet declares with its default feature gates, and nodelet does not.
var undeclared = []string{
	"ExtendWebSocketsToKubelet", // so the API server goes on translating WebSockets
}

// gates are the default feature gates.
type gates struct{ config.Config }

func (g *gates) Enabled(name string) bool { return g.Gate(name) }

// TestDeclaredFeatures compares declaredFeatures with the registry of Kubernetes: the scheduler and the API server
// believe a node in both directions.
func TestDeclaredFeatures(t *testing.T) {
	got := declaredFeatures()
	if !slices.IsSorted(got) {
		t.Errorf("got %q, want them sorted", got)
	}
	node := &types.NodeConfiguration{
		FeatureGates: &gates{},
		Version:      version.MustParseSemantic(release.Kubernetes),
	}
	for _, f := range features.AllFeatures {
		want := f.Discover(node) && !slices.Contains(undeclared, f.Name())
		if latest := f.MaxVersion(); latest != nil && latest.LessThan(node.Version) {
			want = false
		}
		if declared := slices.Contains(got, f.Name()); declared != want {
			t.Errorf("%s is declared: got %v, want %v", f.Name(), declared, want)
		}
		got = slices.DeleteFunc(got, func(name string) bool { return name == f.Name() })
	}
	if len(got) > 0 {
		t.Errorf("got features that Kubernetes %s does not know: %q", release.Kubernetes, got)
	}
}
