package objects

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func named(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }

// TestRefsOf checks that every place in a pod that names a ConfigMap or Secret is found, each object once, and
// watched if a volume shows it.
func TestRefsOf(t *testing.T) {
	app := corev1.Container{Name: "app",
		VolumeMounts: []corev1.VolumeMount{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}, {Name: "e"}},
		EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: named("from")}},
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: named("from")}}},
		Env: []corev1.EnvVar{{Name: "A", Value: "plain"},
			{
				Name: "B",
				ValueFrom: &corev1.EnvVarSource{
					ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: named("volume")},
				},
			},
			{
				Name:      "C",
				ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: named("key")}},
			}}}
	projected := &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: named("projected")}},
		{Secret: &corev1.SecretProjection{LocalObjectReference: named("projected")}},
		{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Name: new("one")}},
		{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{SignerName: new("example.com/a")}}}}
	debug := corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: named("debug")}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}, Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "init", EnvFrom: app.EnvFrom[:1]}}, Containers: []corev1.Container{app},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name:    "debug",
			EnvFrom: []corev1.EnvFromSource{debug},
		}}},
		Volumes: []corev1.Volume{
			{
				Name:         "a",
				VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named("volume")}},
			},
			{Name: "b", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "volume"}}},
			{Name: "c", VolumeSource: corev1.VolumeSource{Projected: projected}},
			{Name: "d", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "e", VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{
				SessionCHAPAuth: true, SecretRef: &corev1.LocalObjectReference{Name: "chap"}}}},
			{
				Name:         "unused",
				VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "unused"}},
			},
		},
		ImagePullSecrets: []corev1.LocalObjectReference{named("pull"), {}}}}
	ref := func(kind Kind, name string, watch bool) Ref {
		return Ref{Kind: kind, Namespace: "default", Name: name, Watch: watch}
	}
	want := []Ref{
		ref(ConfigMap, "volume", true), ref(Secret, "volume", true), ref(Secret, "chap", true),
		ref(ConfigMap, "projected", true), ref(Secret, "projected", true),
		ref(ConfigMap, "from", false), ref(Secret, "from", false), ref(Secret, "key", false),
		ref(Secret, "debug", false), ref(Secret, "pull", false), {Kind: TrustBundles, Watch: true},
		{Kind: Services, Namespace: "default"},
	}
	got := refsOf(pod, false)
	for _, r := range want {
		if !slices.Contains(got, r) {
			t.Errorf("got no %+v, want it", r)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %+v", got)
	}
	if refsOf(&corev1.Pod{}, false) == nil {
		t.Error("got nil, which says that the pod is gone, want an empty list")
	}
	for _, r := range refsOf(pod, true) { // a container lacks something in them
		if !r.Watch && r.Kind != Services {
			t.Errorf("got %+v, want it watched", r)
		}
	}
}
