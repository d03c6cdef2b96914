package spec

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const contexts = `# a policy's own file
process = "system_u:system_r:container_t:s0"
content = "system_u:object_r:virt_var_lib_t:s0"
file = "system_u:object_r:container_file_t:s0"
ro_file="system_u:object_r:container_ro_file_t:s0"
`

func TestParseSELinuxContexts(t *testing.T) {
	t.Parallel()
	got, err := ParseSELinuxContexts([]byte(contexts))
	if err != nil || got != "system_u:object_r:container_file_t:s0" {
		t.Errorf("got %q, %v, want system_u:object_r:container_file_t:s0", got, err)
	}
	for text, words := range map[string]string{
		"process = \"a:b:c:s0\"\n":                      "no line file",
		"#file = \"a:b:c:s0\"\n":                        "no line file",
		"file = \"a:b\"\n":                              "is not a valid SELinux label",
		"file = \"a:b:c:s0\\\",suid,x=\\\"\"\n":         "is not a valid SELinux label",
		strings.Repeat("\n", maxSELinuxContexts) + "\n": "more than",
	} {
		if got, err := ParseSELinuxContexts([]byte(text)); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%.40q: got %q, %v, want an error", text, got, err)
		}
	}
}

func FuzzParseSELinuxContexts(f *testing.F) {
	for _, seed := range []string{contexts, "file=a:b:c", "file = \"a:b:c:s0-s0:c0.c1023\"", "file", "=", "\x00"} {
		f.Add([]byte(seed), "s0:c1,c2")
	}
	f.Fuzz(func(t *testing.T, content []byte, level string) {
		label, err := ParseSELinuxContexts(content)
		if err != nil {
			return
		}
		n := &Node{SELinuxFileLabel: label}
		got, err := n.fileLabel(&corev1.SELinuxOptions{Level: level})
		if err == nil && strings.ContainsAny(got, "\"\\\n ") {
			t.Errorf("%q and level %q: got label %q, want none that would end a mount option", content, level, got)
		}
	})
}

// TestVolumeLabels checks that the labels for a volume's files follow from the options of the pod and of the
// containers that mount the volume.
func TestVolumeLabels(t *testing.T) {
	t.Parallel()
	n := &Node{SELinuxFileLabel: "system_u:object_r:container_file_t:s0"}
	mounts := []corev1.VolumeMount{{Name: "data"}}
	at := func(o *corev1.SELinuxOptions) corev1.Container {
		return corev1.Container{Name: "c", VolumeMounts: mounts, SecurityContext: &corev1.SecurityContext{SELinuxOptions: o}}
	}
	level := func(l string) *corev1.SELinuxOptions { return &corev1.SELinuxOptions{Level: l} }
	const one, two = "system_u:object_r:container_file_t:s0:c1,c2", "system_u:object_r:container_file_t:s0:c3,c4"
	for _, c := range []struct {
		name       string
		pod        *corev1.SELinuxOptions
		containers []corev1.Container
		want       []string
	}{
		{"no options", nil, []corev1.Container{at(nil)}, nil},
		{"options of the pod", level("s0:c1,c2"), []corev1.Container{at(nil), at(nil)}, []string{one}},
		{"a container overrides the pod", level("s0:c3,c4"), []corev1.Container{at(level("s0:c1,c2"))}, []string{one}},
		{"two labels", level("s0:c3,c4"), []corev1.Container{at(level("s0:c1,c2")), at(nil)}, []string{one, two}},
		{"a container without the mount is ignored", nil, []corev1.Container{at(level("s0:c1,c2")),
			{SecurityContext: &corev1.SecurityContext{SELinuxOptions: level("s0:c3,c4")}}}, []string{one}},
		{"files have a type and a role of their own", nil, []corev1.Container{at(&corev1.SELinuxOptions{
			User:  "staff_u",
			Role:  "staff_r",
			Type:  "spc_t",
			Level: "s0:c1,c2",
		})}, []string{"staff_u:object_r:container_file_t:s0:c1,c2"}},
		{"a level that the runtime makes up", &corev1.SELinuxOptions{Type: "container_t"}, []corev1.Container{at(nil)},
			[]string{""}},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{SELinuxOptions: c.pod},
			Containers:      c.containers,
		}}
		got, err := VolumeLabels(n, pod, "data")
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, %v, want %q", c.name, got, err, c.want)
		}
	}
	late := &corev1.Pod{Spec: corev1.PodSpec{EphemeralContainers: []corev1.EphemeralContainer{
		{EphemeralContainerCommon: corev1.EphemeralContainerCommon(at(level("s0:c1,c2")))}}}}
	if got, err := VolumeLabels(n, late, "data"); err != nil || !slices.Equal(got, []string{one}) {
		t.Errorf("an ephemeral container: got %q, %v", got, err)
	}
}

// TestVolumeLabelsRefused checks that a label becomes part of mount options: characters that would add an option are
// rejected.
func TestVolumeLabelsRefused(t *testing.T) {
	t.Parallel()
	policy := "system_u:object_r:container_file_t:s0"
	for _, c := range []struct{ policy, user, level, words string }{
		{policy, "", `s0",suid,context="x`, "cannot have"},
		{policy, "", "s0 c1", "cannot have"},
		{policy, "a:b", "s0", "cannot have"},
		{"", "", "s0:c1,c2", "install a policy"},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{SELinuxOptions: &corev1.SELinuxOptions{User: c.user, Level: c.level}},
			Containers:      []corev1.Container{{Name: "app", VolumeMounts: []corev1.VolumeMount{{Name: "data"}}}}}}
		if got, err := VolumeLabels(&Node{SELinuxFileLabel: c.policy}, pod, "data"); err == nil ||
			!strings.Contains(err.Error(), c.words) {
			t.Errorf("%+v: got %q, %v, want an error with %q", c, got, err, c.words)
		}
	}
}
