package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/test/soak/faultbuild"
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

// TestRunWithoutEvidence ends runs in which the watch has seen nothing, and in which a fault of files had no effect.
func TestRunWithoutEvidence(t *testing.T) {
	dir := t.TempDir()
	page, err := faultbuild.NewPage(filepath.Join(dir, "page"), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	for _, run := range []struct {
		updates int64
		fault   string
		want    int
	}{
		{1, "none", 0},
		{0, "none", 1},
		{1, "root-eio", 1},
		{0, "root-read-only", 2},
	} {
		s := &soak{status: &statusWatch{}, page: page, report: newReport()}
		s.status.updates.Store(run.updates)
		s.report.inject(run.fault)
		s.evidence()
		if got := s.report.Violations; len(got) != run.want {
			t.Errorf("%d updates, fault %s: got violations %q, want %d", run.updates, run.fault, got, run.want)
		}
	}
}

// TestInterruptedRunIsNotRecorded ends a run by itself and by an interrupt.
func TestInterruptedRunIsNotRecorded(t *testing.T) {
	for _, interrupted := range []bool{false, true} {
		file := filepath.Join(t.TempDir(), "runs")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if interrupted {
			cancel()
		}
		s := &soak{opts: options{record: file}, status: &statusWatch{}, report: newReport()}
		s.status.updates.Store(1)
		_, err := s.finish(ctx, "commit")
		_, statErr := os.Stat(file)
		if (err != nil) != interrupted || os.IsNotExist(statErr) != interrupted {
			t.Errorf("interrupted=%v: got error %v, record %v", interrupted, err, statErr)
		}
	}
}
