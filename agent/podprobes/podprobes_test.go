package podprobes

import (
	"runtime"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/probes"
)

// TestProbeTargets checks that each probe of a container is a target, with what is known of it already; of a
// container that ends, readiness alone.
func TestProbeTargets(t *testing.T) {
	check := &corev1.ExecAction{Command: []string{"check", "$(PORT)", "$$(PORT)", "$(SECRET)", "$(NONE)"}}
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: check}}
	c := &corev1.Container{Name: "app", StartupProbe: probe, LivenessProbe: probe, ReadinessProbe: probe,
		Env: []corev1.EnvVar{
			{Name: "PORT", Value: "8080"}, {Name: "PORT", Value: "80"}, {Name: "SECRET", ValueFrom: &corev1.EnvVarSource{}},
		}}
	kinds := func(all []probes.Target) (text string) {
		for _, p := range all {
			text += string(p.Kind) + " " + p.Known.String() + " "
			want := []string{"check", "80", "$(PORT)", "", "$(NONE)"}
			if !slices.Equal(p.Command(), want) || p.PodIP != "10.0.0.1" || p.ContainerID != "id" {
				t.Errorf("got target %+v with command %q, want %q", p, p.Command(), want)
			}
		}
		return text
	}
	for _, x := range []struct {
		target plan.ProbeTarget
		want   string
	}{
		{plan.ProbeTarget{}, "Startup unknown Liveness unknown Readiness unknown "},
		{plan.ProbeTarget{Started: true}, "Startup success Liveness success Readiness unknown "},
		{plan.ProbeTarget{Started: true, Ready: true}, "Startup success Liveness success Readiness success "},
		{plan.ProbeTarget{Started: true, Ready: true, ReadinessOnly: true}, "Readiness success "},
	} {
		x.target.ContainerID, x.target.Container = "id", c
		if got := kinds(targetsOf(x.target, "10.0.0.1")); got != x.want {
			t.Errorf("%+v: got %s, want %s", x.target, got, x.want)
		}
	}
}

// TestHugeCommand checks that commands which are large with the values of their references do not fill the memory of
// the agent: each is bounded, and none is kept.
func TestHugeCommand(t *testing.T) {
	c := &corev1.Container{Env: []corev1.EnvVar{{Name: "LARGE", Value: strings.Repeat("x", 100<<10)}}}
	c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
		Exec: &corev1.ExecAction{Command: slices.Repeat([]string{"$(LARGE)"}, 100)}}}
	var all []probes.Target
	before := heap()
	for range 50 {
		all = append(all, targetsOf(plan.ProbeTarget{Container: c}, "10.0.0.1")...)
	}
	if got := heap() - before; got > 10<<20 {
		t.Errorf("the targets take %d bytes, want no commands in them", got)
	}
	for _, target := range all {
		size := 0
		for _, arg := range target.Command() {
			size += len(arg)
		}
		if size < maxCommand-100<<10 || size > maxCommand+1<<10 {
			t.Fatalf("got a command of %d bytes, want about %d", size, maxCommand)
		}
	}
}

// heap returns the bytes of the objects that are in use.
func heap() int {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}
