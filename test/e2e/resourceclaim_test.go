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

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/plugins/dra/checkpoint"
	"github.com/nodelet/nodelet/test/plugins/dra/fake"
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

// draSliceYAML is the ResourceSlice with the devices of the driver on the node.
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

// claimPodYAML is a pod whose container has the shared ResourceClaim and, with own, one from the template. It runs
// until the file /end exists.
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

// startDRADriver starts the driver on the node, waits until it is registered, and creates its ResourceSlice.
func startDRADriver(t *testing.T) *fake.Driver {
	t.Helper()
	d, err := fake.Start(fake.Config{
		Root:   node().RootDir,
		Name:   draDriver,
		CDIDir: filepath.Join(filepath.Dir(node().RootDir), "cdi"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	eventually(t, "the driver is registered", func() (string, bool) {
		all := d.Registrations()
		return fmt.Sprint(all), len(all) > 0 && all[len(all)-1].PluginRegistered
	})
	apply(t, draSliceYAML())
	return d
}

// claimsSeen lists the environment variables that a container has from its ResourceClaims.
func claimsSeen(t *testing.T, pod string) []string {
	t.Helper()
	lines := strings.Fields(kubectl(t, "exec", pod, "--", "sh", "-c", "env | grep ^FAKE_ | sort"))
	return lines
}

// claimsKept lists the ResourceClaims in the checkpoint of the node as NAME:PODS, without the random ends of the names.
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
	eventually(t, fmt.Sprintf("the checkpoint has the claims %q", want), func() (string, bool) {
		got := claimsKept(t)
		return fmt.Sprint(got), slices.Equal(got, want)
	})
}

// resourceSlices lists the ResourceSlices in the API.
func resourceSlices(t *testing.T) string {
	t.Helper()
	out, err := tb.Kubectl(context.Background(), "get", "resourceslices", "-o", "name")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// TestLongResourceClaims runs pods with shared and own ResourceClaims while agent and driver are killed. A prepared
// claim is unprepared when its last pod is gone, and not before.
func TestLongResourceClaims(t *testing.T) {
	clean(t)
	apply(t, draObjects)
	t.Cleanup(func() {
		if _, err := tb.Kubectl(context.Background(), "delete", "--ignore-not-found", "resourceclaim/shared",
			"resourceclaimtemplate/own",
			"deviceclass/nodelet-test", "resourceslice/nodelet-test"); err != nil {
			t.Error(err)
		}
	})
	d := startDRADriver(t)
	apply(t, claimPodYAML("one", true))
	apply(t, claimPodYAML("two", false))
	waitReady(t, "one")
	waitReady(t, "two")
	uid := strings.TrimSpace(kubectl(t, "get", "resourceclaim", "shared", "-o", "jsonpath={.metadata.uid}"))
	mine := fake.Variable("shared") + "=" + uid
	if got := claimsSeen(t, "one"); len(got) != 2 || !slices.Contains(got, mine) {
		t.Errorf("claims of the first pod: got %q, want %q and one more", got, mine)
	}
	if got := claimsSeen(t, "two"); !slices.Equal(got, []string{mine}) {
		t.Errorf("claims of the second pod: got %q, want %q", got, mine)
	}
	checkKept(t, "one-own:1", "shared:2")
	calls := len(d.Calls())

	t.Log("the agent is killed: pods keep running, and a restarted container has its devices")
	before := containerStatus(getPod(t, "one"), "app")
	killAgent(t)
	eventually(t, "the restarted agent serves exec", func() (string, bool) {
		_, err := tb.Kubectl(t.Context(), "exec", "two", "--", "true")
		return fmt.Sprint(err), err == nil
	})
	letEnd(t, "two", "app", "/end")
	waitPod(t, "two", "runs again", func(p *corev1.Pod) bool {
		return containerStatus(p, "app").RestartCount > 0 && ready(p)
	})
	if got := claimsSeen(t, "two"); !slices.Equal(got, []string{mine}) {
		t.Errorf("claims of the second pod after a restart: got %q, want %q", got, mine)
	}
	if after := containerStatus(getPod(t, "one"), "app"); after.ContainerID != before.ContainerID {
		t.Errorf("container of the first pod: got %+v, want %+v", after, before)
	}
	if got := d.Calls(); len(got) != calls {
		t.Errorf("calls of the driver: got %q, want no more than the %d before", got, calls)
	}

	t.Log("the driver stops: its ResourceSlices are deleted, and a terminating pod waits for the driver")
	d.Close()
	kubectl(t, "delete", "pod", "one", "--wait=false")
	eventually(t, "the ResourceSlices are gone", func() (string, bool) {
		got := resourceSlices(t)
		return got, got == ""
	})
	if p := getPod(t, "one"); p.Status.Phase != corev1.PodRunning {
		t.Errorf("phase of the pod whose claims are prepared: got %s, want Running", p.Status.Phase)
	}
	checkKept(t, "one-own:1", "shared:1")
	d = startDRADriver(t)
	kubectl(t, "wait", "--for=delete", "pod/one", "--timeout=90s")
	checkKept(t, "shared:1")
	if got := d.Calls(); len(got) != 1 || !strings.HasPrefix(got[0], "unprepare one-own-") {
		t.Errorf("calls of the driver: got %q, want one, unprepare one-own-…", got)
	}

	t.Log("a pod is force-deleted while no agent runs: the next agent unprepares its claims")
	stopAgent(t, unix.SIGKILL)
	kubectl(t, "delete", "pod", "two", "--force", "--grace-period=0")
	startAgent(t)
	checkKept(t)
	if got := d.Calls(); len(got) != 2 || got[1] != "unprepare shared" {
		t.Errorf("calls of the driver: got %q, want two, the last unprepare shared", got)
	}
	if resourceSlices(t) == "" {
		t.Error("ResourceSlices after the driver has started again: got none, want that of the driver")
	}
}
