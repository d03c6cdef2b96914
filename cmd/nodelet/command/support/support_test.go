package support

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/cmd/nodelet/command"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/probes"
)

const canary = "c4n4ry-5ecret"

// asAgent makes the test program wait, as an agent whose command line can be read.
const asAgent = "NODELET_TEST_AGENT"

func TestMain(m *testing.M) {
	if os.Getenv(asAgent) != "" {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestChecksOfRunningAgent checks that the results of the checks are about the agent that systemd runs, not about the
// defaults.
func TestChecksOfRunningAgent(t *testing.T) {
	const runtime = "unix:///run/other/runtime.sock"
	running := exec.Command(os.Args[0], "--container-runtime-endpoint="+runtime, "--hostname-override=node")
	running.Env = append(os.Environ(), asAgent+"=1")
	stdin, err := running.StdinPipe()
	if err == nil {
		err = running.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stdin.Close(); _ = running.Wait() })
	root, bin := t.TempDir(), t.TempDir()
	systemctl := fmt.Sprintf("#!/bin/sh\necho LoadState=loaded; echo MainPID=%d\n", running.Process.Pid)
	err = errors.Join(os.MkdirAll(filepath.Join(root, "run/systemd/system"), 0o755),
		os.WriteFile(filepath.Join(bin, "systemctl"), []byte(systemctl), 0o755))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	var out bytes.Buffer
	a := newArchive(&out)
	collect(command.Call{Context: t.Context(), Root: root}, a, t.TempDir(), time.Minute)
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	if text := unpack(t, &out); !strings.Contains(text, "no container runtime answers at "+runtime) {
		t.Errorf("got %s, want that none answers at %s", text, runtime)
	}
}

// failedHook returns the error of a hook with a command of more than one line and an output.
func failedHook(t *testing.T) error {
	command := []string{"sh", "-c", "set -e\ncli -a " + canary + "\n"}
	return probes.RunHook(t.Context(), &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: command}},
		probes.HookTarget{
			Pod:       "web",
			Container: &corev1.Container{Name: "app"},
			Exec: func(context.Context, string, []string, time.Duration) ([]byte, int32, error) {
				return []byte(canary + "\n" + canary), 1, nil
			},
		})
}

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
	neverStarted := &corev1.ContainerStateTerminated{StartedAt: metav1.Unix(0, 0), Message: "exec: no such file"}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		State:                corev1.ContainerState{Terminated: end},
		LastTerminationState: corev1.ContainerState{Terminated: neverStarted},
	}, {
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: podutil.ReasonPostStartHook,
			Message: failedHook(t).Error()}},
	}}
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{
		LastTerminationState: corev1.ContainerState{Terminated: end},
	}}
	explanation := &agent.Explanation{
		Waits: []agent.Wait{
			{Why: `Readiness probe failed: command timed out: "cli -a ` + canary + `" timed out after 1s`, Probe: true},
			{Why: failedHook(t).Error()},
			{Why: "pull image: not found"},
		},
		Ends: []agent.End{{Message: canary, Error: neverStarted.Message}},
	}
	withoutOutput(explanation)
	var out bytes.Buffer
	a := newArchive(&out)
	a.json("pods.json", []*corev1.Pod{withoutSecrets(pod)}, nil)
	a.json("explain.json", explanation, nil)
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	text := unpack(t, &out)
	if strings.Contains(text, canary) || strings.Count(text, neverStarted.Message) != 2 {
		t.Errorf("got %s, want two errors of starts, and no %s", text, canary)
	}
	for _, want := range []string{"example.com/app:1", "PostStartHookError", "Readiness probe failed", "not found"} {
		if !strings.Contains(text, want) {
			t.Errorf("got %s, want it to have %s", text, want)
		}
	}
}

// TestLogsAreRedacted writes lines of logs with secrets and looks for them in an archive.
func TestLogsAreRedacted(t *testing.T) {
	const plain = `--image-credential-provider-config=/a --token-ttl=1m "authentication": {} key: a author=b`
	var out bytes.Buffer
	a := newArchive(&out)
	for _, line := range []string{
		"Authorization: Bearer " + canary,
		`{"password":"` + canary + `"}`,
		"--token=" + canary + " --v=2",
		"API_KEY=" + canary,
		"curl -H 'authorization: basic " + canary + "'",
		"bearer " + canary,
		"nodelet --manifest-url-header=X-Team: b," + "X-Key:" + canary + " --v=2",
		"nodelet --manifest-url=http://user:" + canary + "@example.com/pods",
		`body="{\"kind\":\"TokenRequest\",\"token\":\"` + canary + `\"}" after`,
		`{"password":"one, two \" ` + canary + `"}`,
		`msg="login failed" err="user \"a\", password=\"one\\\" ` + canary + `\""`,
		"password='one two " + canary + "'",
		`msg="config envs:{key:\"DB\" value:\"one \\\" ` + canary + `\"} envs:{key:\"B\"  value:\"` + canary + `\"}"`,
		`labels:{key:"A" value:"` + canary + `"} image:"a"`,
		`Envs:[]*KeyValue{&KeyValue{Key:DB,Value:one, ` + canary + `,},&KeyValue{Key:B,Value:` + canary + `,},}`,
		"AWS_SECRET_ACCESS_KEY=" + canary,
		"secret_key: " + canary + " accessKey=" + canary,
		`{"secretKey":"` + canary + `","private-key":"` + canary + `"}`,
		"passphrase=" + canary + " DB_PASSWORD_2=" + canary,
		"credentials: " + canary,
		`{"auths":{"r.io":{"auth":"` + canary + `"}}}`,
		"client-key-data: " + canary + " .dockerconfigjson: " + canary,
		"-----BEGIN RSA PRIVATE KEY-----\n" + canary + "\n-----END RSA PRIVATE KEY-----",
		fmt.Sprintf("err=%q", failedHook(t)),
		`"Exec lifecycle hook failed" execCommand=["cli","-a","` + canary + `"] message="` + canary + `"`,
		`"Probe failed" output="command timed out: \"cli -a ` + canary + `\" timed out after 1s"`,
		`{"msg":"Exec lifecycle hook failed","execCommand":["cli","-a","` + canary + `"],"message":"` + canary + `"}`,
		`{"msg":"Probe failed","pod":{"name":"web"},"output":"` + canary + `"}`,
		`"Probe failed" probeType="Liveness" pod="default/web" output="` + canary + `"`,
		`"Event occurred" object="default/web" message="Readiness probe failed: ` + canary + `"`,
		`"Event occurred" message="Startup probe errored and resulted in unknown state: ` + canary + `"`,
		`"ExecSync cmd from runtime service failed" err="timeout" containerID="c" cmd=["cli","-a","` + canary + `"]`,
		`{"msg":"ExecSync cmd from runtime service failed","cmd":["cli","-a","` + canary + `"]}`,
		`level=debug msg="ExecSync for \"c\" with command [cli -a ` + canary + `] and timeout 1 (s)"`,
		`level=debug msg="Exec for \"c\" with command [cli -a ` + canary + `], tty false and stdin false"`,
		`msg="Request: &ExecSyncRequest{ContainerId:c,Cmd:[cli -a ` + canary + `],Timeout:1,}"`,
		`Exec probe response: "` + canary + `"`,
		"\"Probe failed\" output=<\n\t" + canary + "\n\t" + canary + "\n >",
		"message=<\nkubelet[1]:         Startup probe failed: a\nkubelet[1]:         " + canary + "\nkubelet[1]:  >",
		plain,
	} {
		a.text("journal.txt", line+"\n")
	}
	a.output(t.Context(), "out.txt", "echo", "secret:", canary)
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	text := unpack(t, &out)
	if strings.Contains(text, canary) || strings.Count(text, "[redacted]") != 46 {
		t.Errorf("got %s, want no %s and 46 times [redacted]", text, canary)
	}
	for _, want := range []string{"--v=2", "after", `image:"a"`, plain} {
		if !strings.Contains(text, want) {
			t.Errorf("got %s, want it to have %s", text, want)
		}
	}
}

// TestRedactedJSON checks that a file of JSON stays JSON, whatever is redacted in it, and keeps its numbers.
func TestRedactedJSON(t *testing.T) {
	var out bytes.Buffer
	a := newArchive(&out)
	a.json("configuration.json", map[string]any{
		"authorization": map[string]any{"mode": "Webhook"},
		"featureGates":  map[string]bool{"AllowParsingUserUIDFromCertAuth": true},
		"why":           `run "psql password=` + canary + `"`,
		"api-key":       canary + " " + canary,
		"all":           []any{"token: " + canary, int64(1)<<53 + 1},
	}, nil)
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	const want = `{"all":["token: [redacted]",9007199254740993],"api-key":"[redacted]",` +
		`"authorization":{"mode":"Webhook"},"featureGates":{"AllowParsingUserUIDFromCertAuth":true},` +
		`"why":"run \"psql password=[redacted]\""}`
	var got bytes.Buffer
	if err := json.Compact(&got, []byte(unpack(t, &out))); err != nil || got.String() != want {
		t.Errorf("got %s, %v, want %s", &got, err, want)
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
