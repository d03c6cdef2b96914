//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/plugins/dra/checkpoint"
	"github.com/nodelet/nodelet/plugins/dra/fake"
	"github.com/nodelet/nodelet/test/testbed"
)

const draDriver = "dra.nodelet.test"

const draObjects = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: nodelet-test}
spec: {selectors: [{cel: {expression: device.driver == "dra.nodelet.test"}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: shared}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: nodelet-test}}]}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: own}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: nodelet-test}}]}}}
`

// draSliceYAML is what the driver offers on the node.
func draSliceYAML() string {
	return fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: nodelet-test}
spec:
  nodeName: %[1]s
  driver: %[2]s
  pool: {name: %[1]s, generation: 1, resourceSliceCount: 1}
  devices: [{name: d1}, {name: d2}, {name: d3}, {name: d4}]
`, node().Name, draDriver)
}

// claimPodYAML is a pod whose container has the shared claim, and one of its own where that is wanted. It runs until there is a file /end.
func claimPodYAML(name string, own bool) string {
	entry, use := "", ""
	if own {
		entry, use = ", {name: own, resourceClaimTemplateName: own}", ", {name: own, request: r}"
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  resourceClaims: [{name: shared, resourceClaimName: shared}%s]
  containers:
  - name: app
    image: %s
    command: [sh, -c, 'env | grep ^FAKE_ && while [ ! -f /end ]; do sleep 1; done']
    resources: {claims: [{name: shared}%s]}
`, name, entry, testbed.BusyboxImage, use)
}

// startDRADriver starts the driver on the node, with its ResourceSlice.
func startDRADriver(t *testing.T) *fake.Driver {
	t.Helper()
	d, err := fake.Start(fake.Config{Root: node().RootDir, Name: draDriver, CDIDir: filepath.Join(filepath.Dir(node().RootDir), "cdi")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	eventually(t, 30*time.Second, "the driver is registered", func() (string, bool) {
		told := d.Told()
		return fmt.Sprint(told), len(told) > 0 && told[len(told)-1].PluginRegistered
	})
	apply(t, draSliceYAML())
	return d
}

// claimsSeen are the variables that a container has by its claims.
func claimsSeen(t *testing.T, pod string) []string {
	t.Helper()
	lines := strings.Fields(kubectl(t, "exec", pod, "--", "sh", "-c", "env | grep ^FAKE_ | sort"))
	return lines
}

// claimsKept are the claims that the node has noted, without the random ends of their names.
func claimsKept(t *testing.T) (names []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(node().RootDir, "dra_manager_state"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := checkpoint.Unmarshal(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		names = append(names, fmt.Sprintf("%s:%d", c.ClaimName[:min(len(c.ClaimName), 7)], len(c.PodUIDs)))
	}
	return names
}

func checkKept(t *testing.T, want ...string) {
	t.Helper()
	eventually(t, 90*time.Second, "the node has noted its claims", func() (string, bool) {
		got := claimsKept(t)
		return fmt.Sprint(got), slices.Equal(got, want)
	})
}

// slicesThere are the ResourceSlices of the driver.
func slicesThere(t *testing.T) string {
	t.Helper()
	out, err := tb.Kubectl(context.Background(), "get", "resourceslices", "-o", "name")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// TestLongResourceClaims: pods with resource claims, shared and of their own, through the death of agent and driver. What is prepared is
// given back when its last pod has gone, and not before.
func TestLongResourceClaims(t *testing.T) {
	clean(t)
	apply(t, draObjects)
	t.Cleanup(func() {
		if _, err := tb.Kubectl(context.Background(), "delete", "--ignore-not-found", "resourceclaim/shared", "resourceclaimtemplate/own",
			"deviceclass/nodelet-test", "resourceslice/nodelet-test"); err != nil {
			t.Error(err)
		}
	})
	d := startDRADriver(t)
	apply(t, claimPodYAML("one", true))
	apply(t, claimPodYAML("two", false))
	waitReady(t, 60*time.Second, "one")
	waitReady(t, 60*time.Second, "two")
	uid := strings.TrimSpace(kubectl(t, "get", "resourceclaim", "shared", "-o", "jsonpath={.metadata.uid}"))
	mine := fake.Variable("shared") + "=" + uid
	if got := claimsSeen(t, "one"); len(got) != 2 || !slices.Contains(got, mine) {
		t.Errorf("the first pod sees %q, want %q and one more", got, mine)
	}
	if got := claimsSeen(t, "two"); !slices.Equal(got, []string{mine}) {
		t.Errorf("the second pod sees %q, want %q", got, mine)
	}
	checkKept(t, "one-own:1", "shared:2")
	calls := len(d.Calls())

	t.Log("the agent is killed: pods go on, and a container that starts anew has its devices")
	before := containerStatus(getPod(t, "one"), "app")
	killAgent(t)
	kubectl(t, "exec", "two", "--", "touch", "/end")
	waitPod(t, 60*time.Second, "two", "runs again", func(p *corev1.Pod) bool { return containerStatus(p, "app").RestartCount > 0 && ready(p) })
	if got := claimsSeen(t, "two"); !slices.Equal(got, []string{mine}) {
		t.Errorf("the second pod's next container sees %q, want %q", got, mine)
	}
	if after := containerStatus(getPod(t, "one"), "app"); after.ContainerID != before.ContainerID {
		t.Errorf("the first pod's container was %+v, is %+v", before, after)
	}
	if got := d.Calls(); len(got) != calls {
		t.Errorf("the driver was asked more: %q", got)
	}

	t.Log("the driver dies: its ResourceSlices go, and a pod that ends waits for it")
	d.Close()
	kubectl(t, "delete", "pod", "one", "--wait=false")
	eventually(t, 90*time.Second, "the ResourceSlices are gone", func() (string, bool) {
		got := slicesThere(t)
		return got, got == ""
	})
	if p := getPod(t, "one"); p.Status.Phase != corev1.PodRunning {
		t.Errorf("the pod whose claims are prepared is called %s", p.Status.Phase)
	}
	checkKept(t, "one-own:1", "shared:1")
	d = startDRADriver(t)
	kubectl(t, "wait", "--for=delete", "pod/one", "--timeout=90s")
	checkKept(t, "shared:1")
	if got := d.Calls(); len(got) != 1 || !strings.HasPrefix(got[0], "unprepare one-own-") {
		t.Errorf("the driver was asked %q", got)
	}

	t.Log("a pod is deleted by force while no agent runs: its claims are given back by the next")
	stopAgent(t, unix.SIGKILL)
	kubectl(t, "delete", "pod", "two", "--force", "--grace-period=0")
	startAgent(t)
	checkKept(t)
	if got := d.Calls(); len(got) != 2 || got[1] != "unprepare shared" {
		t.Errorf("the driver was asked %q", got)
	}
	if slicesThere(t) == "" {
		t.Error("the ResourceSlices of a driver that has come back are gone")
	}
}
