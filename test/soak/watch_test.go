package main

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestSteadyPodsStayReady makes a steady pod not Ready in rounds with different faults.
func TestSteadyPodsStayReady(t *testing.T) {
	for _, round := range []struct {
		faults []string
		want   int
	}{
		{[]string{"none"}, 1},
		{[]string{"agent-kills", "agent-restarts"}, 1},
		{[]string{"agent-killed-often"}, 1},
		{[]string{"agent-stopped"}, 0},
		{[]string{"agent-kills", "runtime-killed"}, 0},
	} {
		w := &statusWatch{report: newReport(), last: map[types.UID]*corev1.Pod{}}
		for _, f := range round.faults {
			w.report.inject(f)
		}
		for _, ready := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse} {
			p := &corev1.Pod{}
			p.UID, p.Labels = "uid", map[string]string{"soak": "steady"}
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
			w.see(p)
		}
		if got := w.report.Violations; len(got) != round.want {
			t.Errorf("faults %q: got violations %q, want %d", round.faults, got, round.want)
		}
	}
}

// TestUndisturbingFaultsExist checks that each fault beside which pods stay Ready is one that can be injected.
func TestUndisturbingFaultsExist(t *testing.T) {
	for _, name := range undisturbing {
		if !slices.ContainsFunc(faults, func(f fault) bool { return f.name == name }) {
			t.Errorf("got no fault %s, want one", name)
		}
	}
}
