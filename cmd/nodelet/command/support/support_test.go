package support

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/agent"
)

const canary = "c4n4ry-5ecret"

// TestPodsKeepTheirSecrets fills each field of a pod in which users put passwords, and looks for them in an archive.
func TestPodsKeepTheirSecrets(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace:   "default",
		Name:        "web",
		Annotations: map[string]string{"kubectl.kubernetes.io/last-applied-configuration": canary},
		Labels:      map[string]string{"a": canary},
	}}
	pod.Spec.Containers = []corev1.Container{{
		Name:    "app",
		Image:   "example.com/app:1",
		Env:     []corev1.EnvVar{{Name: "PASSWORD", Value: canary}},
		Args:    []string{"--password=" + canary},
		Command: []string{"sh", "-c", canary},
	}}
	pod.Spec.InitContainers = pod.Spec.Containers
	pod.Spec.Volumes = []corev1.Volume{{Name: canary}}
	end := &corev1.ContainerStateTerminated{StartedAt: metav1.Now(), Message: canary}
	neverStarted := &corev1.ContainerStateTerminated{Message: "exec: no such file"}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		State:                corev1.ContainerState{Terminated: end},
		LastTerminationState: corev1.ContainerState{Terminated: neverStarted},
	}}
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{
		LastTerminationState: corev1.ContainerState{Terminated: end},
	}}
	explanation := &agent.Explanation{Ends: []agent.End{{Message: canary, Error: neverStarted.Message}}}
	withoutMessages(explanation)
	var out bytes.Buffer
	a := newArchive(&out)
	a.json("pods.json", []*corev1.Pod{withoutSecrets(pod)}, nil)
	a.json("explain.json", explanation, nil)
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	text := unpack(t, &out)
	if strings.Contains(text, canary) || !strings.Contains(text, "example.com/app:1") ||
		strings.Count(text, neverStarted.Message) != 2 {
		t.Errorf("got %s, want the image, two errors of starts, and no %s", text, canary)
	}
}

// TestLogsAreRedacted writes lines of logs with secrets and looks for them in an archive.
func TestLogsAreRedacted(t *testing.T) {
	var out bytes.Buffer
	a := newArchive(&out)
	for _, line := range []string{
		"Authorization: Bearer " + canary,
		`{"password":"` + canary + `"}`,
		"--token=" + canary + " --v=2",
		"API_KEY=" + canary,
		"curl -H 'authorization: basic " + canary + "'",
		"bearer " + canary,
		"-----BEGIN RSA PRIVATE KEY-----\n" + canary + "\n-----END RSA PRIVATE KEY-----",
	} {
		a.text("journal.txt", line+"\n")
	}
	a.output(t.Context(), "out.txt", "echo", "secret:", canary)
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	text := unpack(t, &out)
	if strings.Contains(text, canary) || strings.Count(text, "[redacted]") != 8 || !strings.Contains(text, "--v=2") {
		t.Errorf("got %s, want no %s", text, canary)
	}
}

// unpack returns the text of all files.
func unpack(t *testing.T, archive io.Reader) string {
	t.Helper()
	gz, err := gzip.NewReader(archive)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for r := tar.NewReader(gz); ; {
		if _, err := r.Next(); err == io.EOF {
			return all.String()
		} else if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(&all, r); err != nil {
			t.Fatal(err)
		}
	}
}
