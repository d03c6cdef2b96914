//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

// bystander runs a pod that the test must not disturb: it stays Ready and is never restarted. The returned function
// checks that its containers are still the same. The end of the test calls it, too.
func bystander(t *testing.T) (check func()) {
	t.Helper()
	apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: bystander, labels: {role: bystander}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: %s}]
`, testbed.PauseImage))
	waitReady(t, "bystander")
	before := instances(t, "role=bystander")
	watched := record("role=bystander")
	check = func() {
		t.Helper()
		if now := instances(t, "role=bystander"); now != before {
			t.Errorf("containers of the bystander: got %s, want %s", now, before)
		}
	}
	t.Cleanup(func() {
		watched.cancel()
		watched.done.Wait()
		for uid, p := range watched.last {
			if !ready(p) || p.DeletionTimestamp != nil {
				t.Errorf("the bystander (%s) at the end: got %s, want it Ready", uid, describe(p))
			}
		}
		check()
	})
	return check
}

// TestBadPods creates pods that cannot run. Each reports the cause in its status and in an event, and starts by
// itself as soon as the cause is fixed.
func TestBadPods(t *testing.T) {
	clean(t)
	sameAgent(t)
	bystander(t)
	badCommand := "CrashLoopBackOff"
	if node().Runtime.Name == "cri-o" { // CRI-O starts a container's first process when it creates the container
		badCommand = "CreateContainerError"
	}
	dir := t.TempDir()
	apply(t, fill(t, "testdata/bad.yaml", dir))
	for _, c := range []struct {
		pod, waits string   // reason of the waiting state
		words      []string // words in the message of the waiting state
		event      string   // reason of the event
		message    []string // words in the message of the event
		fix        func()   // nil: the test does not fix this cause
	}{
		{"bad-image", "ErrImagePull", []string{"registry.k8s.io/no-such-image:1"}, "Failed",
			[]string{"Failed to pull image", "no-such-image:1"},
			func() { kubectl(t, "set", "image", "pod/bad-image", "app="+testbed.PauseImage) }},
		{"bad-key", "CreateContainerConfigError", []string{"couldn't find key absent in ConfigMap default/bad-map"}, "Failed",
			[]string{"key absent"},
			func() { kubectl(t, "patch", "configmap", "bad-map", "-p", `{"data":{"absent":"here"}}`) }},
		{"bad-env", "CreateContainerConfigError", []string{`secret "bad-env-secret" not found`}, "Failed",
			[]string{"bad-env-secret"},
			func() { apply(t, secretYAML("bad-env-secret")) }},
		{"bad-volume", "ContainerCreating", nil, "FailedMount",
			[]string{`volume "data"`, `secret "bad-volume-secret" not found`},
			func() { apply(t, secretYAML("bad-volume-secret")) }},
		{"bad-user", "CreateContainerConfigError", []string{"container has runAsNonRoot and image will run as root"},
			"Failed", []string{"runAsNonRoot"}, nil},
		{"bad-command", badCommand, nil, "Failed",
			[]string{`exec: `, `no-such-program`, `: executable file not found in $PATH`}, nil},
		{"bad-path", "ContainerCreating", nil, "FailedMount",
			[]string{`volume "data"`, filepath.Join(dir, "missing") + " is not a directory"}, nil},
	} {
		t.Run(c.pod, func(t *testing.T) {
			waitPod(t, c.pod, "reports the cause", waitingFor("app", c.waits, c.words...))
			waitEvent(t, c.pod, c.event, c.message...)
			if c.pod == "bad-image" {
				waitPod(t, c.pod, "waits to pull again", waitingFor("app", "ImagePullBackOff", "no-such-image:1"))
				waitEvent(t, c.pod, "BackOff", "Back-off pulling image")
			}
			if c.fix != nil {
				c.fix()
				waitReady(t, c.pod) // agent/ tests prove that no back-off is waited for
			}
		})
	}
	t.Run("bad-path fixed", func(t *testing.T) { // no event announces a new directory, so the agent polls for it
		if err := os.Mkdir(filepath.Join(dir, "missing"), 0o755); err != nil {
			t.Fatal(err)
		}
		waitReady(t, "bad-path")
	})
}

func secretYAML(name string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s}\nstringData: {key: value}\n", name)
}

// TestRejected binds pods to the node that admission must reject. They fail at once with the reason, and no other pod
// is disturbed.
func TestRejected(t *testing.T) {
	clean(t)
	sameAgent(t)
	bystander(t)
	for _, c := range []struct{ name, spec, reason, message string }{
		{"rejected-cpu", `{name: app, image: x, resources: {requests: {cpu: "1000"}}}`, "OutOfcpu",
			"Pod was rejected: Node didn't have enough resource: cpu, requested: 1000000, used: "},
		{"rejected-memory", `{name: app, image: x, resources: {requests: {memory: 1000Ti}}}`, "OutOfmemory",
			"Pod was rejected: Node didn't have enough resource: memory, requested: "},
		{"rejected-place", `{name: app, image: x}], nodeSelector: {moon: dark}, tolerations: [{operator: Exists}`,
			"NodeAffinity",
			"Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"},
		{"rejected-volume", `{name: app, image: x, volumeMounts: [{name: share, mountPath: /share}]}],
				volumes: [{name: share, rbd: {monitors: [none], image: none}}`,
			"UnexpectedAdmissionError",
			`volume "share"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			apply(t, fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {nodeName: %s, containers: [%s]}\n",
				c.name, node().Name, c.spec))
			p := waitPod(t, c.name, "is rejected",
				func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
			if p.Status.Reason != c.reason || !strings.Contains(p.Status.Message, c.message) {
				t.Errorf("rejection: got %q: %q, want %q: …%s…", p.Status.Reason, p.Status.Message, c.reason, c.message)
			}
			waitEvent(t, c.name, c.reason, strings.TrimPrefix(c.message, "Pod was rejected: "))
		})
	}
}
