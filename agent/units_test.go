package agent

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/kube/objects"
	"github.com/nodelet/nodelet/probes"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// TestHintsAreCollected checks that hints to a busy worker do not block, and that none is lost.
func TestHintsAreCollected(t *testing.T) {
	w := newWorker((&Backends{}).complete(), newLimiters(), discard())
	w.stale = false
	w.memory.Volumes["data"] = podstate.Volume{}
	for range 1000 {
		w.notify(hintObjects)
		w.notify(hintRuntime)
		w.notify(hintVerdict)
	}
	if len(w.wake) != 1 {
		t.Errorf("%d wake-ups wait", len(w.wake))
	}
	w.drain()
	if !w.stale || !w.memory.Volumes["data"].Stale {
		t.Errorf("a hint was lost: %v, %+v", w.stale, w.memory.Volumes)
	}
}

// TestLinkName: log collectors take the name of the link apart, and it is never too long for a file.
func TestLinkName(t *testing.T) {
	task := &task{pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}}}
	if got, want := task.linkName("app", "c0de"), "web_default_app-c0de.log"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	task.pod.Name = strings.Repeat("w", 253)
	if got := task.linkName("app", "c0de"); len(got) != 255 || !strings.HasSuffix(got, "w.log") {
		t.Errorf("got %d bytes, %q, want 255 that end in w.log", len(got), got)
	}
}

func named(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }

// TestRefsOf: every place in a pod that names a ConfigMap or Secret, each object once; watched if a volume shows it.
func TestRefsOf(t *testing.T) {
	app := corev1.Container{Name: "app",
		EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: named("from")}},
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: named("from")}}},
		Env: []corev1.EnvVar{{Name: "A", Value: "plain"},
			{Name: "B", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: named("volume")}}},
			{Name: "C", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: named("key")}}}}}
	projected := &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: named("projected")}},
		{Secret: &corev1.SecretProjection{LocalObjectReference: named("projected")}},
		{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Name: new("one")}},
		{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{SignerName: new("example.com/a")}}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}, Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "init", EnvFrom: app.EnvFrom[:1]}}, Containers: []corev1.Container{app},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: "debug", EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: named("debug")}}}}}},
		Volumes: []corev1.Volume{
			{Name: "a", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named("volume")}}},
			{Name: "b", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "volume"}}},
			{Name: "c", VolumeSource: corev1.VolumeSource{Projected: projected}},
			{Name: "d", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "e", VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{
				SessionCHAPAuth: true, SecretRef: &corev1.LocalObjectReference{Name: "chap"}}}},
		}}}
	ref := func(kind objects.Kind, name string, watch bool) objects.Ref {
		return objects.Ref{Kind: kind, Namespace: "default", Name: name, Watch: watch}
	}
	want := []objects.Ref{
		ref(objects.ConfigMap, "volume", true), ref(objects.Secret, "volume", true), ref(objects.Secret, "chap", true),
		ref(objects.ConfigMap, "projected", true), ref(objects.Secret, "projected", true),
		ref(objects.ConfigMap, "from", false), ref(objects.Secret, "from", false), ref(objects.Secret, "key", false),
		ref(objects.Secret, "debug", false), {Kind: objects.TrustBundles, Watch: true},
		{Kind: objects.Services, Namespace: "default"},
	}
	got := refsOf(pod, false)
	for _, r := range want {
		if !slices.Contains(got, r) {
			t.Errorf("missing: %+v", r)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %+v", got)
	}
	if refsOf(&corev1.Pod{}, false) == nil {
		t.Error("nil would say that the pod is gone")
	}
	for _, r := range refsOf(pod, true) { // a container lacks something in them
		if !r.Watch && r.Kind != objects.Services {
			t.Errorf("not watched: %+v", r)
		}
	}
}

// TestProbeTargets: each probe of a container, with what is known of it already; of one that ends, readiness alone.
func TestProbeTargets(t *testing.T) {
	check := &corev1.ExecAction{Command: []string{"check", "$(PORT)", "$$(PORT)", "$(SECRET)"}}
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: check}}
	c := &corev1.Container{Name: "app", StartupProbe: probe, LivenessProbe: probe, ReadinessProbe: probe,
		Env: []corev1.EnvVar{{Name: "PORT", Value: "80"}, {Name: "SECRET", ValueFrom: &corev1.EnvVarSource{}}}}
	kinds := func(all []probes.Target) (text string) {
		for _, p := range all {
			text += string(p.Kind) + " " + p.Known.String() + " "
			want := []string{"check", "80", "$(PORT)", "$(SECRET)"}
			if !slices.Equal(p.Command, want) || p.PodIP != "10.0.0.1" || p.ContainerID != "id" {
				t.Errorf("got target %+v, want command %q", p, want)
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
		if got := kinds(probeTargets(x.target, "10.0.0.1")); got != x.want {
			t.Errorf("%+v: %s", x.target, got)
		}
	}
}

// TestFieldPath: events name the list that a container stands in.
func TestFieldPath(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "setup"}}, Containers: []corev1.Container{{Name: "app"}},
		EphemeralContainers: []corev1.EphemeralContainer{{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"},
		}},
	}}
	for name, want := range map[string]string{"setup": "spec.initContainers{setup}", "app": "spec.containers{app}",
		"debug": "spec.ephemeralContainers{debug}", "gone": ""} {
		if got := fieldPath(pod, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// claimed gives each container a device by a resource claim.
type claimed struct{ Claims }

func (claimed) Devices(*corev1.Pod, *corev1.Container) ([]string, error) {
	return []string{"x.com/y=1"}, nil
}

// TestClaimedDevices: a container is made with the devices of its resource claims.
func TestClaimedDevices(t *testing.T) {
	task := &task{backends: (&Backends{Claims: claimed{}}).complete(), pod: &corev1.Pod{}}
	got, err := task.devices(t.Context(), &corev1.Container{Name: "app"})
	if err != nil || !slices.Equal(got.CDI, []string{"x.com/y=1"}) {
		t.Errorf("got %+v, %v", got, err)
	}
}
