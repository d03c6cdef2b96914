//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodelet/nodelet/test/testbed"
)

// staticPod is a manifest of a pod that takes a moment to end.
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

// manifest puts a file into a manifest directory, in one step, and takes it away when the test ends.
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

// mirrorName is how the API shows a static pod.
func mirrorName(name string) string { return name + "-" + node().Name }

func mirrorReady(t *testing.T, name string, also func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	return waitPod(t, 20*time.Second, mirrorName(name), "is shown as Ready", func(p *corev1.Pod) bool { return ready(p) && (also == nil || also(p)) })
}

// TestStaticPod: a static pod is shown by a mirror pod, which comes back when it is deleted while its containers run on; it is
// the same pod for the next life of the agent; and a mirror pod stays until its pod has ended.
func TestStaticPod(t *testing.T) {
	clean(t)
	manifest(t, node().ManifestDir, "static.yaml", staticPod("static", "one"))
	first := mirrorReady(t, "static", nil)
	if first.Annotations["kubernetes.io/config.mirror"] == "" || len(first.OwnerReferences) != 1 || first.OwnerReferences[0].Name != node().Name {
		t.Errorf("the mirror pod is %+v", first.ObjectMeta)
	}
	id := containerStatus(first, "app").ContainerID
	if !strings.HasPrefix(id, node().RuntimeName+"://") {
		t.Errorf("the container's ID is %q", id)
	}
	same := func(p *corev1.Pod) bool {
		return containerStatus(p, "app").ContainerID == id && containerStatus(p, "app").RestartCount == 0
	}

	kubectl(t, "delete", "pod", mirrorName("static"), "--wait=false")
	mirrorReady(t, "static", func(p *corev1.Pod) bool { return p.UID != first.UID && same(p) })

	killAgent(t)
	mark := markLog(t)
	mark.waitLine(t, 10*time.Second, "node is registered")
	second := mirrorReady(t, "static", same)

	manifest(t, node().ManifestDir, "static.yaml", staticPod("static", "two"))
	third := waitPod(t, 20*time.Second, second.Name, "is another pod", func(p *corev1.Pod) bool { return p.UID != second.UID })
	ended(t, second) // its container needs two seconds for that
	third = mirrorReady(t, "static", func(p *corev1.Pod) bool { return p.UID == third.UID && p.Labels["round"] == "two" })
	anew(t, third)

	if err := os.Remove(filepath.Join(node().ManifestDir, "static.yaml")); err != nil {
		t.Fatal(err)
	}
	waitGone(t, 20*time.Second, third.Name)
	ended(t, third)
}

// TestStaticPodChangedWhileAway: a pod whose manifest has changed while the agent was away begins when the one of before has ended, and
// that one's mirror pod stays so long.
func TestStaticPodChangedWhileAway(t *testing.T) {
	clean(t)
	manifest(t, node().ManifestDir, "changed.yaml", staticPod("changed", "one"))
	first := mirrorReady(t, "changed", nil)
	stopAgent(t, unix.SIGKILL)
	manifest(t, node().ManifestDir, "changed.yaml", staticPod("changed", "two"))
	startAgent(t)
	second := waitPod(t, 20*time.Second, first.Name, "is another pod", func(p *corev1.Pod) bool { return p.UID != first.UID })
	ended(t, first) // its container needs two seconds for that
	second = mirrorReady(t, "changed", func(p *corev1.Pod) bool { return p.UID == second.UID && p.Labels["round"] == "two" })
	anew(t, second)
	if err := os.Remove(filepath.Join(node().ManifestDir, "changed.yaml")); err != nil {
		t.Fatal(err)
	}
	waitGone(t, 20*time.Second, second.Name)
	ended(t, second)
}

// anew: a pod whose manifest has changed is not the one of before, of which nothing is told.
func anew(t *testing.T, p *corev1.Pod) {
	t.Helper()
	if st := containerStatus(p, "app"); st.RestartCount != 0 || st.LastTerminationState.Terminated != nil {
		t.Errorf("the pod that was changed has %d restarts, and ended last as %v", st.RestartCount, st.LastTerminationState.Terminated)
	}
}

// ended: no container of a static pod runs. Its mirror pod is gone, and must not have gone before.
func ended(t *testing.T, mirror *corev1.Pod) {
	t.Helper()
	labels := map[string]string{"io.kubernetes.pod.uid": mirror.Annotations["kubernetes.io/config.mirror"]}
	if left := containers(t, labels, true); len(left) != 0 {
		t.Errorf("the mirror pod %s (%s) is gone, and its container still runs", mirror.Name, mirror.UID)
	}
}

// TestBadManifests: manifests that cannot be read are named with what is wrong and where, in the log and by an event about the
// node. They disturb no other, and run as soon as they are mended.
func TestBadManifests(t *testing.T) {
	clean(t)
	sameAgent(t)
	dir := node().ManifestDir
	mark := markLog(t)
	manifest(t, dir, "00-good.yaml", staticPod("good", "one"))
	good := mirrorReady(t, "good", nil)
	for _, c := range []struct {
		file, text string
		says       []string
	}{
		{"bad-syntax.yaml", strings.Replace(staticPod("bad-syntax", "one"), "spec:", "spec: [", 1), []string{"yaml"}},
		{"bad-field.yaml", strings.Replace(staticPod("bad-field", "one"), "spec:", "spec:\n  hostNetwrk: true", 1), []string{`unknown field \"spec.hostNetwrk\"`}},
		{"bad-twin.yaml", staticPod("good", "two"), []string{"Pod default/good-" + node().Name, "00-good.yaml, which is used"}},
		{"bad-security.yaml", strings.Replace(staticPod("bad-security", "one"), "- name: app", "- name: app\n    securityContext: {privileged: true, allowPrivilegeEscalation: false}", 1),
			[]string{"spec.containers[0].securityContext", "allowPrivilegeEscalation"}},
		{"bad-key.yaml", strings.Replace(staticPod("bad-key", "one"), "- name: app", "- name: app\n    env: [{name: A, valueFrom: {configMapKeyRef: {name: nobody, key: x}}}]", 1),
			[]string{"nobody"}},
	} {
		t.Run(c.file, func(t *testing.T) {
			manifest(t, dir, c.file, c.text)
			path := filepath.Join(dir, c.file)
			mark.waitLine(t, 10*time.Second, append(c.says, path)...)
			waitNodeEvent(t, 10*time.Second, "BadManifest", path)
			if c.file == "bad-twin.yaml" {
				return // a name that is taken: the file that had it keeps it
			}
			name := strings.TrimSuffix(c.file, ".yaml")
			manifest(t, dir, c.file, staticPod(name, "mended"))
			mirrorReady(t, name, nil)
		})
	}
	if now := getPod(t, good.Name); now.UID != good.UID || containerStatus(now, "app").ContainerID != containerStatus(good, "app").ContainerID {
		t.Error("the good pod is not the one it was")
	}
}

// TestBadConfig: a configuration with a field that there is not is refused with its name; so is a second agent on one root
// directory, and the first goes on.
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
		what string
		args []string
		says []string
	}{
		{"an unknown field", []string{"--config=" + bad}, []string{bad, "staticPodPaths", `did you mean "staticPodPath"?`}},
		{"a second agent", []string{"--config=" + node().ConfigFile, "--root-dir=" + node().RootDir, "--kubeconfig=" + node().Kubeconfig},
			[]string{fmt.Sprintf("another agent (pid %d) works in %s", node().AgentPID(), node().RootDir)}},
	} {
		if out, code := nodelet(t, c.args...); code != 1 || !hasAll(out, c.says) {
			t.Errorf("%s: exit code %d, want 1 and a word of %q:\n%s", c.what, code, c.says, out)
		}
	}
	if out, code := explain(t); code != 0 {
		t.Errorf("the agent does not answer any more: %s", out)
	}
}

// TestStandalone runs the pods of a directory, which also holds what they use, without any API server.
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
	eventually(t, 20*time.Second, "the pod runs and sees its objects", func() (string, bool) {
		out, err := tryInside(t, mirrorName("alone"), "app", "sh", "-c", "echo $WORD $(cat /settings/colour)")
		return fmt.Sprint(out, err), out == "sesame green"
	})
	if out, code := explain(t); code != 0 || !strings.Contains(out, "default/"+mirrorName("alone")) {
		t.Errorf("explain says %s", out)
	}
	manifest(t, dir, "objects.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {colour: blue}\n"+
		"---\napiVersion: v1\nkind: Secret\nmetadata: {name: password}\nstringData: {word: sesame}\n")
	eventually(t, 10*time.Second, "a change of the ConfigMap reaches the pod", func() (string, bool) {
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
		t.Errorf("the API server has heard of the pod: %v", err)
	}
}
