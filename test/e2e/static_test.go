//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodelet/nodelet/test/testbed"
)

// staticPod is a manifest of a pod that needs two seconds to terminate.
func staticPod(name, round string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {round: %q}}
spec:
  terminationGracePeriodSeconds: 10
  containers:
  - name: app
    image: %s
    command: [sh, -c, "trap 'sleep 2; exit 0' TERM; while true; do sleep 0.1; done"]
`, name, round, testbed.BusyboxImage)
}

// manifest creates a file in a manifest directory atomically, and removes it when the test ends.
func manifest(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(filepath.Join(dir, "."+name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "."+name), path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(path) })
}

// mirrorName returns the name of a static pod's mirror pod.
func mirrorName(name string) string { return name + "-" + node().Name }

func mirrorReady(t *testing.T, name string, also func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	return waitPod(t, mirrorName(name), "is shown as Ready", func(p *corev1.Pod) bool {
		return ready(p) && (also == nil || also(p))
	})
}

// TestStaticPod checks the mirror pod of a static pod. A deleted mirror pod is created again while the containers
// keep running. A restarted agent keeps the pod. A mirror pod stays until its pod has terminated.
func TestStaticPod(t *testing.T) {
	clean(t)
	manifest(t, node().ManifestDir, "static.yaml", staticPod("static", "one"))
	first := mirrorReady(t, "static", nil)
	if first.Annotations["kubernetes.io/config.mirror"] == "" || len(first.OwnerReferences) != 1 ||
		first.OwnerReferences[0].Name != node().Name {
		t.Errorf("mirror pod: got %+v, want the mirror annotation and the node as its owner", first.ObjectMeta)
	}
	id := containerStatus(first, "app").ContainerID
	if !strings.HasPrefix(id, node().Runtime.Name+"://") {
		t.Errorf("container ID: got %q, want prefix %s://", id, node().Runtime.Name)
	}
	same := func(p *corev1.Pod) bool {
		return containerStatus(p, "app").ContainerID == id && containerStatus(p, "app").RestartCount == 0
	}

	kubectl(t, "delete", "pod", mirrorName("static"), "--wait=false")
	mirrorReady(t, "static", func(p *corev1.Pod) bool { return p.UID != first.UID && same(p) })

	mark := markLog(t)
	killAgent(t)
	mark.waitLine(t, "node is registered")
	second := mirrorReady(t, "static", same)

	manifest(t, node().ManifestDir, "static.yaml", staticPod("static", "two"))
	third := waitPod(t, second.Name, "is another pod",
		func(p *corev1.Pod) bool { return p.UID != second.UID })
	ended(t, second) // the container needs two seconds to terminate
	third = mirrorReady(t, "static", func(p *corev1.Pod) bool { return p.UID == third.UID && p.Labels["round"] == "two" })
	checkNewPod(t, third)

	if err := os.Remove(filepath.Join(node().ManifestDir, "static.yaml")); err != nil {
		t.Fatal(err)
	}
	waitGone(t, third.Name)
	ended(t, third)
}

// TestStaticPodChangedWhileAway changes a manifest while no agent runs. The new pod starts when the old one has
// terminated, and the old mirror pod stays until then.
func TestStaticPodChangedWhileAway(t *testing.T) {
	clean(t)
	manifest(t, node().ManifestDir, "changed.yaml", staticPod("changed", "one"))
	first := mirrorReady(t, "changed", nil)
	stopAgent(t, unix.SIGKILL)
	manifest(t, node().ManifestDir, "changed.yaml", staticPod("changed", "two"))
	startAgent(t)
	second := waitPod(t, first.Name, "is another pod",
		func(p *corev1.Pod) bool { return p.UID != first.UID })
	ended(t, first) // the container needs two seconds to terminate
	second = mirrorReady(t, "changed",
		func(p *corev1.Pod) bool { return p.UID == second.UID && p.Labels["round"] == "two" })
	checkNewPod(t, second)
	if err := os.Remove(filepath.Join(node().ManifestDir, "changed.yaml")); err != nil {
		t.Fatal(err)
	}
	waitGone(t, second.Name)
	ended(t, second)
}

// checkNewPod checks that the pod of a changed manifest has no restarts and no last state of the pod before.
func checkNewPod(t *testing.T, p *corev1.Pod) {
	t.Helper()
	if st := containerStatus(p, "app"); st.RestartCount != 0 || st.LastTerminationState.Terminated != nil {
		t.Errorf("pod of a changed manifest: got %d restarts and last state %v, want none",
			st.RestartCount, st.LastTerminationState.Terminated)
	}
}

// ended checks that no container of a static pod runs. Its mirror pod is gone, and must not be deleted before the
// containers stop.
func ended(t *testing.T, mirror *corev1.Pod) {
	t.Helper()
	labels := map[string]string{"io.kubernetes.pod.uid": mirror.Annotations["kubernetes.io/config.mirror"]}
	if left := containers(t, labels, true); len(left) != 0 {
		t.Errorf("containers of the deleted mirror pod %s (%s): got %d running, want none", mirror.Name, mirror.UID,
			len(left))
	}
}

// TestStaticPodReturns removes a manifest and puts it back: at once, and after the pod has terminated. The first one is
// a restart of the same pod, as the kubelet counts it; the other is a new pod.
func TestStaticPodReturns(t *testing.T) {
	clean(t)
	path, text := filepath.Join(node().ManifestDir, "returns.yaml"), staticPod("returns", "one")
	remove := func() {
		t.Helper()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	another := func(id string, restarts int32) string {
		t.Helper()
		p := mirrorReady(t, "returns", func(p *corev1.Pod) bool { return containerStatus(p, "app").ContainerID != id })
		status := containerStatus(p, "app")
		if status.RestartCount != restarts {
			t.Errorf("restart count: got %d, want %d", status.RestartCount, restarts)
		}
		return status.ContainerID
	}
	manifest(t, node().ManifestDir, "returns.yaml", text)
	id := another("", 0)
	remove()
	manifest(t, node().ManifestDir, "returns.yaml", text)
	id = another(id, 1)
	remove()
	waitGone(t, mirrorName("returns"))
	manifest(t, node().ManifestDir, "returns.yaml", text)
	another(id, 0)
}

// TestBadManifests creates invalid manifests. The log and an event about the node show the file and the fault. Other
// static pods are not disturbed, and a pod runs as soon as its manifest is fixed.
func TestBadManifests(t *testing.T) {
	clean(t)
	sameAgent(t)
	dir := node().ManifestDir
	mark := markLog(t)
	manifest(t, dir, "00-good.yaml", staticPod("good", "one"))
	good := mirrorReady(t, "good", nil)
	for _, c := range []struct {
		file, text string
		words      []string // in the log line
	}{
		{"bad-syntax.yaml", strings.Replace(staticPod("bad-syntax", "one"), "spec:", "spec: [", 1), []string{"yaml"}},
		{"bad-field.yaml", strings.Replace(staticPod("bad-field", "one"), "spec:", "spec:\n  hostNetwrk: true", 1),
			[]string{`spec.hostNetwrk: unknown field; did you mean \"hostNetwork\"?`}},
		{"bad-twin.yaml", staticPod("good", "two"),
			[]string{"Pod default/good-" + node().Name, "00-good.yaml, which is used"}},
		{"bad-security.yaml", strings.Replace(staticPod("bad-security", "one"), "- name: app",
			"- name: app\n    securityContext: {privileged: true, allowPrivilegeEscalation: false}", 1),
			[]string{"spec.containers[0].securityContext", "allowPrivilegeEscalation"}},
		{"bad-key.yaml", strings.Replace(staticPod("bad-key", "one"), "- name: app",
			"- name: app\n    env: [{name: A, valueFrom: {configMapKeyRef: {name: no-such-map, key: x}}}]", 1),
			[]string{"no-such-map"}},
	} {
		t.Run(c.file, func(t *testing.T) {
			manifest(t, dir, c.file, c.text)
			path := filepath.Join(dir, c.file)
			mark.waitLine(t, append(c.words, path)...)
			waitNodeEvent(t, "BadManifest", path)
			if c.file == "bad-twin.yaml" {
				return // the name belongs to another file, which keeps it
			}
			name := strings.TrimSuffix(c.file, ".yaml")
			manifest(t, dir, c.file, staticPod(name, "fixed"))
			mirrorReady(t, name, nil)
		})
	}
	now := getPod(t, good.Name)
	if now.UID != good.UID || containerStatus(now, "app").ContainerID != containerStatus(good, "app").ContainerID {
		t.Error("the good pod: got another UID or container, want the same")
	}
}

// TestBadConfig checks that a configuration with an unknown field is rejected with the name of the field, and that a
// second agent on the same root directory exits while the first keeps running.
func TestBadConfig(t *testing.T) {
	sameAgent(t)
	text, err := os.ReadFile(node().ConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(bad, append(text, "staticPodPaths: /etc/kubernetes/manifests\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what  string
		args  []string
		words []string // in the output
	}{
		{"an unknown field", []string{"--config=" + bad}, []string{bad, "staticPodPaths", `did you mean "staticPodPath"?`}},
		{"a second agent",
			[]string{"--config=" + node().ConfigFile, "--root-dir=" + node().RootDir, "--kubeconfig=" + node().Kubeconfig},
			[]string{fmt.Sprintf("another agent (pid %d) works in %s", node().AgentPID(), node().RootDir)}},
	} {
		if out, code := nodelet(t, c.args...); code != 1 || !hasAll(out, c.words) {
			t.Errorf("%s: got exit code %d, want 1 and %q in the output:\n%s", c.what, code, c.words, out)
		}
	}
	if out, code := explain(t); code != 0 {
		t.Errorf("explain after the second agent: got exit code %d, want 0: %s", code, out)
	}
}

// TestStandalone runs the pods of a manifest directory without an API server. The directory also has their ConfigMap
// and Secret.
func TestStandalone(t *testing.T) {
	clean(t)
	dir := t.TempDir()
	manifest(t, dir, "objects.yaml", `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {colour: green}
---
apiVersion: v1
kind: Secret
metadata: {name: password}
stringData: {word: sesame}
`)
	manifest(t, dir, "alone.yaml", fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: alone}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: %s
    command: [sh, -c, "while true; do sleep 1; done"]
    env: [{name: WORD, valueFrom: {secretKeyRef: {name: password, key: word}}}]
    volumeMounts: [{name: settings, mountPath: /settings}]
  volumes: [{name: settings, configMap: {name: settings}}]
`, testbed.BusyboxImage))
	end := runStandalone(t, dir)
	eventually(t, "the pod runs and sees its objects", func() (string, bool) {
		out, err := tryInside(t, mirrorName("alone"), "app", "sh", "-c", "echo $WORD $(cat /settings/colour)")
		return fmt.Sprint(out, err), out == "sesame green"
	})
	if out, code := explain(t); code != 0 || !strings.Contains(out, "default/"+mirrorName("alone")) {
		t.Errorf("explain: got exit code %d, want 0 and default/%s in %s", code, mirrorName("alone"), out)
	}
	manifest(t, dir, "objects.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {colour: blue}\n"+
		"---\napiVersion: v1\nkind: Secret\nmetadata: {name: password}\nstringData: {word: sesame}\n")
	eventually(t, "the pod sees the change of the ConfigMap", func() (string, bool) {
		out, err := tryInside(t, mirrorName("alone"), "app", "cat", "/settings/colour")
		return fmt.Sprint(out, err), out == "blue"
	})
	if err := os.Remove(filepath.Join(dir, "alone.yaml")); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t)
	end()
	err := api.Core.Get().Namespace(space).Resource("pods").Name(mirrorName("alone")).Do(t.Context()).Error()
	if !apierrors.IsNotFound(err) {
		t.Errorf("get the pod from the API server: got %v, want not found", err)
	}
}
