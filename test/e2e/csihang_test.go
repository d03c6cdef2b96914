//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/csi/fake"
)

// nodeCalls are the calls of an agent to a CSI driver that may hang.
var nodeCalls = []string{
	"NodeGetInfo", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume",
	"NodeGetVolumeStats",
}

// stuck is how many pods wait for the driver: more than the calls of one kind that the agent makes at a time.
const stuck = 8

// TestLongHungCSIDriver lets a CSI driver answer no call any more, with pods that wait for it and one that ends. All
// others start, end and are reported as before, a pod without its volume can be deleted, and the agent stops and
// starts. When the driver answers again, everything goes on.
func TestLongHungCSIDriver(t *testing.T) {
	clean(t)
	d := startCSI(t)
	apply(t, csiDriverYAML+claimYAML(d, t, "has"))
	apply(t, fmt.Sprintf(holderYAML, "has", "has"))
	apply(t, crashing("beside"))
	waitReady(t, "has")
	beside := containerStatus(waitReady(t, "beside"), "app").ContainerID
	for i := range stuck {
		apply(t, claimYAML(d, t, fmt.Sprintf("wants-%d", i)))
	}

	d.hang(t)
	for i := range stuck {
		apply(t, fmt.Sprintf(holderYAML, fmt.Sprintf("wants-%d", i), fmt.Sprintf("wants-%d", i)))
	}
	eventually(t, "all volumes are attached, so that the driver is called", func() (string, bool) {
		out, err := tb.Kubectl(context.Background(), "get", "volumeattachments", "-o",
			"jsonpath={.items[*].status.attached}")
		return fmt.Sprint(out, err), strings.Count(out, "true") == 1+stuck
	})
	others(t, "first")
	kubectl(t, "delete", "pod", "wants-0", "--timeout=5m")
	kubectl(t, "delete", "pod", "has", "--wait=false")
	waitPod(t, "has", "has ended, and waits for its volume", func(p *corev1.Pod) bool {
		return containerStatus(p, "app").State.Terminated != nil
	})
	others(t, "second")

	began := time.Now()
	stopAgent(t, unix.SIGTERM)
	if took := time.Since(began); took >= time.Minute { // a call may take two minutes
		t.Errorf("end of the agent: got it after %v, want it within a minute", took)
	}
	startAgent(t)
	others(t, "third")
	if got := containerStatus(getPod(t, "beside"), "app").ContainerID; got != beside {
		t.Errorf("the container beside: got %s, want %s", got, beside)
	}

	for _, call := range nodeCalls {
		if err := fake.Heal(d.state, call); err != nil {
			t.Fatal(err)
		}
	}
	waitGone(t, "has")
	for i := 1; i < stuck; i++ {
		waitReady(t, fmt.Sprintf("wants-%d", i))
		kubectl(t, "delete", "pod", fmt.Sprintf("wants-%d", i), "--timeout=120s")
	}
	d.waitReturned(t)
}

// hang lets the driver answer none of nodeCalls.
func (d *csiDriver) hang(t *testing.T) {
	t.Helper()
	for _, call := range nodeCalls {
		if err := fake.Fail(d.state, call, "hang", 0); err != nil {
			t.Fatal(err)
		}
	}
}

// claimYAML returns a claim and its volume, which the driver has made.
func claimYAML(d *csiDriver, t *testing.T, name string) string {
	t.Helper()
	return volumeYAML("pv-"+name, name, d.createVolume(t, name, 16<<20), "16Mi", "Filesystem") + fmt.Sprintf(`---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec:
  {accessModes: [ReadWriteOnce], storageClassName: manual, volumeName: pv-%s, resources: {requests: {storage: 16Mi}}}
`, name, name)
}

// others checks what must go on beside pods that wait: a pod starts, restarts and ends, the node's lease is renewed,
// and usage is reported.
func others(t *testing.T, name string) {
	t.Helper()
	apply(t, crashing(name))
	waitReady(t, name)
	letEnd(t, name, "app", "/tmp/end")
	waitPod(t, name, "has restarted", func(p *corev1.Pod) bool {
		return containerStatus(p, "app").RestartCount > 0 && ready(p)
	})
	kubectl(t, "delete", "pod", name, "--timeout=5m")
	renewed := func() string {
		out, err := tb.Kubectl(context.Background(), "get", "lease", "-n", "kube-node-lease", node().Name,
			"-o", "jsonpath={.spec.renewTime}")
		return fmt.Sprint(out, err)
	}
	before := renewed()
	eventually(t, "the lease is renewed", func() (string, bool) {
		now := renewed()
		return now, now != before
	})
	summary := kubectl(t, "get", "--raw", "/api/v1/nodes/"+node().Name+"/proxy/stats/summary", "--request-timeout=30s")
	if !strings.Contains(summary, `"name":"beside"`) && !strings.Contains(summary, `"name": "beside"`) {
		t.Errorf("%s: got no pod beside in the summary, want it:\n%s", name, summary)
	}
	if err := node().WaitReady(t.Context(), limit); err != nil {
		t.Errorf("%s: %v", name, err)
	}
}
