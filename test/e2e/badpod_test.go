//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

// bystander runs a pod beside the test, which must not notice what happens to others: it stays Ready and is never restarted.
// The returned function says so as of now; it is called at the test's end as well.
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
	waitReady(t, 60*time.Second, "bystander")
	before := instances(t, "role=bystander")
	watched := record("role=bystander")
	check = func() {
		t.Helper()
		if now := instances(t, "role=bystander"); now != before {
			t.Errorf("the bystander was %s and is %s now", before, now)
		}
	}
	t.Cleanup(func() {
		watched.cancel()
		watched.done.Wait()
		for uid, p := range watched.last {
			if !ready(p) || p.DeletionTimestamp != nil {
				t.Errorf("the bystander (%s) ends as %s", uid, describe(p))
			}
		}
		check()
	})
	return check
}

// TestBadPods makes pods that cannot run as they are: each says what is wrong, in its status and in an event, and runs by
// itself, and at once, when that has been mended.
func TestBadPods(t *testing.T) {
	clean(t)
	sameAgent(t)
	bystander(t)
	badCommand := "CrashLoopBackOff"
	if node().RuntimeName == "cri-o" { // it starts a container's first process when it makes the container
		badCommand = "CreateContainerError"
	}
	dir := t.TempDir()
	apply(t, fill(t, "testdata/bad.yaml", dir))
	for _, c := range []struct {
		pod, waits string   // for this reason
		words      []string // which its message holds
		event      string   // has this reason
		tells      []string // and these words
		mend       func()   // nil: it cannot be mended
	}{
		{"bad-image", "ErrImagePull", []string{"registry.k8s.io/no-such-image:1"}, "Failed", []string{"Failed to pull image", "no-such-image:1"},
			func() { kubectl(t, "set", "image", "pod/bad-image", "app="+testbed.PauseImage) }},
		{"bad-key", "CreateContainerConfigError", []string{"couldn't find key absent in ConfigMap default/bad-map"}, "Failed", []string{"key absent"},
			func() { kubectl(t, "patch", "configmap", "bad-map", "-p", `{"data":{"absent":"here"}}`) }},
		{"bad-env", "CreateContainerConfigError", []string{`secret "bad-env-secret" not found`}, "Failed", []string{"bad-env-secret"},
			func() { apply(t, secretYAML("bad-env-secret")) }},
		{"bad-volume", "ContainerCreating", nil, "FailedMount", []string{`volume "data"`, `secret "bad-volume-secret" not found`},
			func() { apply(t, secretYAML("bad-volume-secret")) }},
		{"bad-user", "CreateContainerConfigError", []string{"container has runAsNonRoot and image will run as root"}, "Failed", []string{"runAsNonRoot"}, nil},
		{"bad-command", badCommand, nil, "Failed", []string{`exec: `, `no-such-program`, `: executable file not found in $PATH`}, nil},
		{"bad-path", "ContainerCreating", nil, "FailedMount", []string{`volume "data"`, filepath.Join(dir, "missing") + " is not a directory"}, nil},
	} {
		t.Run(c.pod, func(t *testing.T) {
			waitPod(t, 30*time.Second, c.pod, "says what is wrong", waitingFor("app", c.waits, c.words...))
			waitEvent(t, 10*time.Second, c.pod, c.event, c.tells...)
			if c.pod == "bad-image" {
				waitPod(t, 30*time.Second, c.pod, "waits to pull again", waitingFor("app", "ImagePullBackOff", "no-such-image:1"))
				waitEvent(t, 5*time.Second, c.pod, "BackOff", "Back-off pulling image")
			}
			if c.mend != nil {
				c.mend()
				waitReady(t, 3*time.Second, c.pod)
			}
		})
	}
	t.Run("bad-path mended", func(t *testing.T) { // nobody tells the agent of a new directory, so it looks now and then
		if err := os.Mkdir(filepath.Join(dir, "missing"), 0o755); err != nil {
			t.Fatal(err)
		}
		waitReady(t, 40*time.Second, "bad-path")
	})
}

func secretYAML(name string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s}\nstringData: {key: value}\n", name)
}

// TestRejected binds pods to the node that it must refuse: they fail at once and say why, and the bystander stays.
func TestRejected(t *testing.T) {
	clean(t)
	sameAgent(t)
	bystander(t)
	for _, c := range []struct{ name, spec, reason, message string }{
		{"rejected-cpu", `{name: app, image: x, resources: {requests: {cpu: "1000"}}}`, "OutOfcpu",
			"Pod was rejected: Node didn't have enough resource: cpu, requested: 1000000, used: "},
		{"rejected-memory", `{name: app, image: x, resources: {requests: {memory: 1000Ti}}}`, "OutOfmemory",
			"Pod was rejected: Node didn't have enough resource: memory, requested: "},
		{"rejected-place", `{name: app, image: x}], nodeSelector: {moon: dark}, tolerations: [{operator: Exists}`, "NodeAffinity",
			"Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"},
		{"rejected-volume", `{name: app, image: x}], volumes: [{name: share, rbd: {monitors: [none], image: none}}`, "UnexpectedAdmissionError",
			`volume "share"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			apply(t, fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {nodeName: %s, containers: [%s]}\n", c.name, node().Name, c.spec))
			p := waitPod(t, 20*time.Second, c.name, "is rejected", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
			if p.Status.Reason != c.reason || !strings.Contains(p.Status.Message, c.message) {
				t.Errorf("rejected with %q: %q, want %q: …%s…", p.Status.Reason, p.Status.Message, c.reason, c.message)
			}
			waitEvent(t, 10*time.Second, c.name, c.reason, strings.TrimPrefix(c.message, "Pod was rejected: "))
		})
	}
}
