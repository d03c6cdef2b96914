//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/internal/release"
	staticpods "github.com/nodelet/nodelet/kube/pods/manifest"
	"github.com/nodelet/nodelet/test/testbed"
)

// settling is how long a new agent is watched after it has started its first pod. It is longer than the slow periodic
// work of nodelet (a relist each minute) and of the kubelet (reconstruction of volumes, housekeeping).
const settling = 75 * time.Second

// tooYoung is how long a container counts as new for a starting kubelet. It sets a new container to not Ready until a
// probe succeeds, even if it has started the container itself.
const tooYoung = 12 * time.Second

// TestLongTakeover switches the node from the kubelet to nodelet, back, and to nodelet again, while pods of all kinds
// run that both have started; of each, one was resized, and one cannot be. No pod is disturbed: no container, mount,
// address or probe result changes, and no pod is deleted. With a kubelet of an older version it switches to nodelet
// only: this kubelet would give the static pod that nodelet has started another UID.
func TestLongTakeover(t *testing.T) {
	clean(t)
	stopAgent(t, unix.SIGTERM)
	t.Cleanup(func() { // whichever agent runs now, nodelet must run in the end
		stopAgent(t, unix.SIGTERM)
		startAgent(t)
	})
	startKind(t, testbed.Kubelet)
	d := startCSI(t)
	dir := t.TempDir()
	apply(t, csiDriverYAML)
	byKubelet := startGroup(t, d, "kubelet", dir, 18080)

	t.Log("from the kubelet to nodelet")
	before := agentFiles(t)
	watched := beginWitness(t)
	watched.call("http://" + node().IP + ":18080/healthz")
	switchAgent(t, testbed.Nodelet, "first")
	watched.check(t, "from the kubelet to nodelet")
	if now := agentFiles(t); now != before {
		t.Errorf("files of the kubelet: got\n%s\nwant\n%s", now, before)
	}

	if older() {
		byKubelet.finish(t)
		d.waitReturned(t)
		return
	}
	t.Log("from nodelet to the kubelet")
	byKubelet.requestCPU(t, "30m", false) // the scheduler counts what a pod waits for
	byNodelet := startGroup(t, d, "nodelet", dir, 18081)
	byKubelet.resize(t, "10m")
	watched = beginWitness(t)
	watched.call("http://" + node().IP + ":18080/healthz")
	watched.call("http://" + node().IP + ":18081/healthz")
	switchAgent(t, testbed.Kubelet, "second")
	watched.check(t, "from nodelet to the kubelet")

	t.Log("from the kubelet to nodelet again")
	watched = beginWitness(t)
	switchAgent(t, testbed.Nodelet, "third")
	watched.check(t, "from the kubelet to nodelet again")

	byKubelet.finish(t)
	byNodelet.finish(t)
	d.waitReturned(t)
}

// older reports whether the testbed has an older version of Kubernetes than the one that nodelet follows.
func older() bool {
	minor := os.Getenv(testbed.KubernetesEnv)
	return minor != "" && minor != release.Minor()
}

// startKind starts an agent of that kind and waits until the node is Ready.
func startKind(t *testing.T, kind testbed.AgentKind) {
	t.Helper()
	if err := node().StartAgent(context.Background(), kind); err != nil {
		t.Fatal(err)
	}
	if err := node().WaitReady(t.Context(), limit); err != nil {
		t.Fatal(err)
	}
}

// switchAgent stops the node's agent as a service manager does, and starts the other kind. When it returns, the new
// agent has started the pod marker, so it has seen the other pods, and settling has passed.
func switchAgent(t *testing.T, to testbed.AgentKind, marker string) {
	t.Helper()
	stopAgent(t, unix.SIGTERM)
	startKind(t, to)
	apply(t, crashing(marker))
	waitReady(t, marker)
	time.Sleep(settling)
}

// agentFiles returns the state files of the kubelet. nodelet must not change them as long as no pod is resized.
func agentFiles(t *testing.T) (all string) {
	t.Helper()
	for _, name := range []string{
		"cpu_manager_state", "memory_manager_state", "dra_manager_state", "allocated_pods_state", "actuated_pods_state",
	} {
		text, err := os.ReadFile(filepath.Join(node().RootDir, name))
		if err != nil {
			t.Errorf("read the kubelet's %s: %v", name, err)
		}
		all += fmt.Sprintf("%s: %s\n", name, text)
	}
	return all
}

// group is a set of pods that one agent, kubelet or nodelet, has started.
type group struct{ who, dir string }

// startGroup starts pods of all kinds, and a static pod, which must have the same UID under both agents.
func startGroup(t *testing.T, d *csiDriver, who, dir string, port int) group {
	t.Helper()
	d.waitRegistered(t)
	claim := "data-" + who + "-state-0"
	apply(t, volumeYAML("pv-"+who, claim, d.createVolume(t, who, 16<<20), "16Mi", "Filesystem"))
	t.Cleanup(func() {
		_, _ = tb.Kubectl(context.Background(), "delete", "pvc", claim, "--ignore-not-found", "--timeout=5m")
	})
	// The kubelet records the resources with which it has created its containers. It restarts a container without a
	// record if its resize policy is RestartContainer. nodelet writes no such record.
	policy := map[string]string{"kubelet": "RestartContainer", "nodelet": "NotRequired"}[who]
	variables := strings.NewReplacer("${WHO}", who, "${PORT}", strconv.Itoa(port), "${POLICY}", policy)
	apply(t, variables.Replace(fill(t, "testdata/takeover.yaml", dir)))
	text := staticPod(who+"-static", "one")
	manifest(t, node().ManifestDir, who+".yaml", text)
	mirror := waitReady(t, mirrorName(who+"-static"))
	path := filepath.Join(node().ManifestDir, who+".yaml")
	file, errs := staticpods.Parse([]byte(text), staticpods.Origin{NodeName: node().Name, Source: "file", Where: path})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	want := file.Pods[0].Hash
	if older() {
		want = file.Pods[0].Older[0]
	}
	if uid := mirror.Annotations["kubernetes.io/config.hash"]; uid != want {
		t.Errorf("UID of the static pod under %s: got %s, want %s", who, uid, want)
	}
	const each = 12 // three of them belong to the Deployment
	eventually(t, "all pods are Ready", func() (string, bool) {
		pods, seen := listPods(t, "started-by="+who), ""
		n := 0
		for _, p := range pods {
			if ready(&p) {
				n++
			} else {
				seen += p.Name + " "
			}
		}
		return fmt.Sprintf("%d of %d; not: %s", n, each, seen), n == each
	})
	g := group{who, dir}
	g.resize(t, "20m")
	// The API server accepts no request beyond the node. All of it is too much beside other pods.
	g.requestCPU(t, kubectl(t, "get", "node", node().Name, "-o", "jsonpath={.status.allocatable.cpu}"), true)
	time.Sleep(tooYoung)
	return g
}

// requestCPU resizes the pod greedy, and waits until the resize is pending or is not.
func (g group) requestCPU(t *testing.T, cpu string, pending bool) {
	t.Helper()
	pod := g.who + "-greedy"
	patchPodResources(t, pod,
		fmt.Sprintf(`{"containers":[{"name":"app","resources":{"requests":{"cpu":%q},"limits":{"cpu":%[1]q}}}]}`, cpu))
	waitPod(t, pod, "resize is decided", func(p *corev1.Pod) bool {
		return p.Status.ObservedGeneration == p.Generation && pending == (condition(p, corev1.PodResizePending) != "")
	})
}

// resize lets a pod request less CPU.
func (g group) resize(t *testing.T, cpu string) {
	t.Helper()
	patchPodResources(t, g.who+"-resized",
		fmt.Sprintf(`{"containers":[{"name":"app","resources":{"requests":{"cpu":%q}}}]}`, cpu))
	waitPod(t, g.who+"-resized", "is resized", func(p *corev1.Pod) bool {
		r := containerStatus(p, "app").Resources
		return p.Status.ObservedGeneration == p.Generation && r != nil && r.Requests.Cpu().String() == cpu &&
			condition(p, corev1.PodResizeInProgress) == "" && condition(p, corev1.PodResizePending) == ""
	})
}

// finish lets the Job complete, checks that nothing ran twice, and deletes the StatefulSet.
func (g group) finish(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, "finish"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "wait", "--for=condition=complete", "job/"+g.who+"-job", "--timeout=5m")
	if runs, err := os.ReadFile(filepath.Join(g.dir, g.who+"-runs")); string(runs) != "run\n" {
		t.Errorf("runs of the Job's container: got %q (%v), want one", runs, err)
	}
	for file, want := range map[string]string{"first": "once", "hook": "once"} {
		if got := shell(t, g.who+"-init", "app", "cat /scratch/"+file); strings.TrimSpace(got) != want {
			t.Errorf("%s of pod %s-init: got %q, want %q", file, g.who, got, want)
		}
	}
	kubectl(t, "delete", "statefulset", g.who+"-state", "--timeout=5m")
	waitGone(t, g.who+"-state-0")
}

// call requests a URL again and again. Each request must succeed.
func (w *witness) call(url string) {
	h := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	w.done.Go(func() {
		for w.ctx.Err() == nil {
			resp, err := h.Get(url)
			if err == nil {
				resp.Body.Close()
			}
			if err != nil || resp.StatusCode != http.StatusOK {
				w.note("%s did not answer: %v", url, err)
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
}
