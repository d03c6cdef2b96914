package policy

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestExceeded checks which limit a pod has exceeded, and the message for users.
func TestExceeded(t *testing.T) {
	const scratch = `volumes: [{name: a, emptyDir: {}}, {name: b, emptyDir: {sizeLimit: 1Ki}},
		{name: m, emptyDir: {medium: Memory, sizeLimit: 1Ki}}]`
	const both = `containers: [{name: one, resources: {limits: {ephemeral-storage: 1Ki}}},
		{name: two, resources: {limits: {ephemeral-storage: 2Ki}}}]`
	for name, c := range map[string]struct {
		spec    string
		use     Storage
		limited bool
		want    Overrun
	}{
		"no limit": {
			spec: `{volumes: [{name: a, emptyDir: {}}]}`,
			use:  Storage{Pod: 1 << 40, Volumes: map[string]int64{"a": 1 << 40}},
		},
		"a limit of zero is none": {
			spec: `{volumes: [{name: a, emptyDir: {sizeLimit: "0"}}]}`,
			use:  Storage{Volumes: map[string]int64{"a": 1}},
		},
		"a limit beyond any number": {
			spec: `{volumes: [{name: a, emptyDir: {sizeLimit: "9223372036854775808"}}], containers: [
				{name: one, resources: {limits: {ephemeral-storage: "9223372036854775808"}}}]}`,
			limited: true,
			use:     Storage{Pod: 1, Volumes: map[string]int64{"a": 1}, Containers: map[string]int64{"one": 1}},
		},
		"in memory the kernel counts": {
			spec: `{volumes: [{name: m, emptyDir: {medium: Memory, sizeLimit: 1}}]}`,
			use:  Storage{Volumes: map[string]int64{"m": 9}},
		},
		"an emptyDir keeps its limit": {
			spec:    "{" + scratch + "}",
			limited: true,
			use:     Storage{Pod: 9999, Volumes: map[string]int64{"a": 9999, "b": 1024}},
		},
		"an emptyDir exceeds it": {
			spec:    "{" + scratch + "}",
			limited: true,
			use:     Storage{Volumes: map[string]int64{"b": 1025}},
			want:    Overrun{EmptyDirLimit, `Usage of EmptyDir volume "b" exceeds the limit "1Ki". `},
		},
		"emptyDirs come first": {
			spec:    "{" + scratch + ", " + both + "}",
			limited: true,
			use:     Storage{Pod: 9999, Volumes: map[string]int64{"b": 1025}},
			want:    Overrun{EmptyDirLimit, `Usage of EmptyDir volume "b" exceeds the limit "1Ki". `},
		},
		"the pod as a whole": {
			spec:    "{" + both + "}",
			limited: true,
			use:     Storage{Pod: 3073, Containers: map[string]int64{"one": 1025}},
			want:    Overrun{PodLimit, `Pod ephemeral local storage usage exceeds the total limit of containers 3Ki. `},
		},
		"one container": {
			spec:    "{" + both + "}",
			limited: true,
			use:     Storage{Pod: 3072, Containers: map[string]int64{"one": 1024, "two": 2049}},
			want:    Overrun{ContainerLimit, `Container two exceeded its local ephemeral storage limit "2Ki". `},
		},
		"a sidecar": {
			spec: `{initContainers: [{name: one, restartPolicy: Always, resources: {limits: {ephemeral-storage: 1Ki}}}],
				containers: [{name: two, resources: {limits: {ephemeral-storage: 2Ki}}}]}`,
			limited: true,
			use:     Storage{Pod: 2048, Containers: map[string]int64{"one": 1025, "two": 1023}},
			want:    Overrun{ContainerLimit, `Container one exceeded its local ephemeral storage limit "1Ki". `},
		},
		"an init container ends": {
			spec: `{initContainers: [{name: one, resources: {limits: {ephemeral-storage: 1Ki}}}],
				containers: [{name: two, resources: {limits: {ephemeral-storage: 2Ki}}}]}`,
			limited: true,
			use:     Storage{Pod: 2048, Containers: map[string]int64{"one": 1025, "two": 1023}},
		},
		"critical pods may": {spec: "{priority: 2000000000, " + both + "}", limited: true, use: Storage{Pod: 9999}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{}
			if err := yaml.Unmarshal([]byte(c.spec), &pod.Spec); err != nil {
				t.Fatal(err)
			}
			if got := LimitsStorage(pod); got != c.limited {
				t.Errorf("is watched: got %v, want %v", got, c.limited)
			}
			var got Overrun
			if o := Exceeded(pod, c.use); o != nil {
				got = *o
			}
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// TestLimitsStorageAllocatesNothing checks that asking about a pod without limits leaves no garbage: the agent asks
// about each pod every ten seconds.
func TestLimitsStorageAllocatesNothing(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "setup"}},
		Containers:     []corev1.Container{{Name: "app"}},
		Volumes:        []corev1.Volume{{Name: "data"}},
	}}
	if got := testing.AllocsPerRun(100, func() { LimitsStorage(pod) }); got != 0 {
		t.Errorf("got %v allocations, want 0", got)
	}
}
