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

	staticpods "github.com/nodelet/nodelet/kube/pods/manifest"
	"github.com/nodelet/nodelet/test/testbed"
)

// settling is how long a new agent is watched after it has started its first pod: longer than the slow rounds of nodelet (a
// relist each minute) and of the kubelet (reconstruction of volumes, housekeeping).
const settling = 75 * time.Second

// tooYoung is how long a kubelet that starts takes a container for new: it calls it not Ready until a probe says otherwise, also
// if that is its own container.
const tooYoung = 12 * time.Second

// TestLongTakeover: the node goes from the kubelet to nodelet, back, and to nodelet again, under pods of all kinds that either
// has started. None of them notices: no container, mount, address or verdict changes, and no pod is deleted.
func TestLongTakeover(t *testing.T) {
	clean(t)
	stopAgent(t, unix.SIGTERM)
	t.Cleanup(func() { // whichever agent runs, nodelet has the node in the end
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
	changeHands(t, testbed.Nodelet, "first")
	watched.check(t, "from the kubelet to nodelet")
	if now := agentFiles(t); now != before {
		t.Errorf("the kubelet's files were\n%s\nand are\n%s", before, now)
	}

	t.Log("and back")
	byNodelet := startGroup(t, d, "nodelet", dir, 18081)
	watched = beginWitness(t)
	watched.call("http://" + node().IP + ":18080/healthz")
	watched.call("http://" + node().IP + ":18081/healthz")
	changeHands(t, testbed.Kubelet, "second")
	watched.check(t, "from nodelet to the kubelet")

	t.Log("and to nodelet again")
	watched = beginWitness(t)
	changeHands(t, testbed.Nodelet, "third")
	watched.check(t, "from the kubelet to nodelet again")

	byKubelet.finish(t)
	byNodelet.finish(t)
	d.waitReturned(t)
}

// startKind starts an agent of that kind and waits until the node is Ready and its own.
func startKind(t *testing.T, kind testbed.AgentKind) {
	t.Helper()
	if err := node().StartAgent(context.Background(), kind); err != nil {
		t.Fatal(err)
	}
	if err := node().WaitReady(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
}

// changeHands has the node's agent end as a service manager ends it, and the other kind start. When this returns the new agent
// has started a pod, so it has seen the others, and has had the time to do what it does to them.
func changeHands(t *testing.T, to testbed.AgentKind, sign string) {
	t.Helper()
	stopAgent(t, unix.SIGTERM)
	startKind(t, to)
	apply(t, crashing(sign))
	waitReady(t, 120*time.Second, sign)
	time.Sleep(settling)
}

// agentFiles shows what the kubelet's managers keep on the node: nodelet must leave that to them.
func agentFiles(t *testing.T) (all string) {
	t.Helper()
	for _, name := range []string{"cpu_manager_state", "memory_manager_state", "dra_manager_state", "allocated_pods_state", "actuated_pods_state"} {
		text, err := os.ReadFile(filepath.Join(node().RootDir, name))
		if err != nil {
			t.Errorf("the kubelet has left no %s: %v", name, err)
		}
		all += fmt.Sprintf("%s: %s\n", name, text)
	}
	return all
}

// group are the pods that one agent has started.
type group struct{ who, dir string }

// startGroup starts pods of all kinds, and a static pod, whose UID must be the one that both agents give it.
func startGroup(t *testing.T, d *csiDriver, who, dir string, port int) group {
	t.Helper()
	d.waitRegistered(t)
	claim := "data-" + who + "-state-0"
	apply(t, volumeYAML("pv-"+who, claim, d.createVolume(t, who, 16<<20), "16Mi", "Filesystem"))
	t.Cleanup(func() {
		_, _ = tb.Kubectl(context.Background(), "delete", "pvc", claim, "--ignore-not-found", "--timeout=60s")
	})
	// The kubelet keeps a record of what it has made its containers with. One that it finds without a record it makes anew where
	// the policy of a resize is RestartContainer; nodelet writes no such record.
	policy := map[string]string{"kubelet": "RestartContainer", "nodelet": "NotRequired"}[who]
	apply(t, strings.NewReplacer("${WHO}", who, "${PORT}", strconv.Itoa(port), "${POLICY}", policy).Replace(fill(t, "testdata/takeover.yaml", dir)))
	text := staticPod(who+"-static", "one")
	manifest(t, node().ManifestDir, who+".yaml", text)
	mirror := waitReady(t, 180*time.Second, mirrorName(who+"-static"))
	path := filepath.Join(node().ManifestDir, who+".yaml")
	file, errs := staticpods.Parse([]byte(text), staticpods.Origin{NodeName: node().Name, Source: "file", Where: path})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if uid := mirror.Annotations["kubernetes.io/config.hash"]; uid != file.Pods[0].Hash {
		t.Errorf("%s gives the static pod the UID %s, nodelet %s", who, uid, file.Pods[0].Hash)
	}
	const each = 10 // of which three are the Deployment's
	eventually(t, 240*time.Second, "all pods are Ready", func() (string, bool) {
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
	time.Sleep(tooYoung)
	return group{who, dir}
}

// finish has the Job end as it would have, and everything else deleted.
func (g group) finish(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, "finish"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "wait", "--for=condition=complete", "job/"+g.who+"-job", "--timeout=60s")
	if runs, err := os.ReadFile(filepath.Join(g.dir, g.who+"-runs")); string(runs) != "run\n" {
		t.Errorf("the Job's container ran so: %q (%v), want once", runs, err)
	}
	for file, want := range map[string]string{"first": "once", "hook": "once"} {
		if got := shell(t, g.who+"-init", "app", "cat /scratch/"+file); strings.TrimSpace(got) != want {
			t.Errorf("%s of pod %s-init ran so: %q", file, g.who, got)
		}
	}
	kubectl(t, "delete", "statefulset", g.who+"-state", "--timeout=60s")
	waitGone(t, 60*time.Second, g.who+"-state-0")
}

// call asks for a URL again and again; each time must succeed.
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
