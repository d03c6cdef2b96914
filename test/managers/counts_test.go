package managers

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/metrics"

	"github.com/nodelet/nodelet/agent/placement/policy"
)

// counters are values of the kubelet's counters resource_manager_*, by name and labels.
type counters map[string]int

// TestCounts admits random pods on all machines, by both sides, and compares by how much each pod increases the
// counters resource_manager_*. The kubelet's are those of the process, so the pods come one after the other.
func TestCounts(t *testing.T) {
	klog.SetLogger(logr.Discard())
	err := utilfeature.DefaultMutableFeatureGate.Set(
		"CPUManagerPolicyAlphaOptions=true,PodLevelResources=true,PodLevelResourceManagers=true")
	if err != nil {
		t.Fatal(err)
	}
	metrics.Register()
	all, kinds := tally{}, map[string]bool{}
	for i, shape := range shapes {
		e := &episode{t: t, rand: rand.New(rand.NewPCG(*seed, uint64(i))), shape: shape, counted: kinds}
		all.add(e.run(true))
	}
	t.Logf("%d machines, %d pods, %d counters", len(shapes), all.pods, len(kinds))
	if want := 14; len(kinds) != want {
		t.Errorf("got %d counters that pods have increased, want %d: %v", len(kinds), want, kinds)
	}
}

// theirCounters reads the counters of the kubelet's side.
func theirCounters(t *testing.T) counters {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := counters{}
	for _, f := range families {
		name, ok := strings.CutPrefix(f.GetName(), "kubelet_resource_manager_")
		if !ok {
			continue
		}
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			resource := labels["resource_name"]
			delete(labels, "resource_name")
			for _, of := range labels {
				all[fmt.Sprintf("%s %s %s", name, resource, of)] = int(m.GetCounter().GetValue())
			}
		}
	}
	return all
}

// since returns what has been added since before.
func (c counters) since(before counters) counters {
	added := counters{}
	for name, n := range c {
		if n != before[name] {
			added[name] = n - before[name]
		}
	}
	return added
}

// ourCounters returns what a decision of nodelet adds to its counters.
func ourCounters(c policy.Count) counters {
	all := counters{}
	for name, shares := range map[string]map[policy.Share]int{
		"allocations_total":           c.Allocations,
		"allocation_errors_total":     c.AllocationErrors,
		"container_assignments_total": c.Assignments,
	} {
		for s, n := range shares {
			all[fmt.Sprintf("%s %s %s", name, s.Resource, s.Of)] = n
		}
	}
	return all
}

// compareCounters compares what the last pod has added to the counters.
func (e *episode) compareCounters(before counters) {
	if e.counted == nil {
		return
	}
	got, want := ourCounters(e.ours.count), theirCounters(e.t).since(before)
	if !maps.Equal(got, want) {
		e.fail("counters: got %v, want %v", got, want)
	}
	for name := range want {
		e.counted[name] = true
	}
}
