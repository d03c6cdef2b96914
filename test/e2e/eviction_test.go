//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

// smallRoot mounts a small file system on the agent's root directory, so that a test can fill it, and restarts the
// agent with additional settings. The end of the test restores both, also after a step of it has failed.
func smallRoot(t *testing.T, settings string) {
	t.Helper()
	config := readConfig(t)
	stopAgent(t, unix.SIGTERM)
	t.Cleanup(func() {
		mark := markLog(t)
		startAgent(t)
		mark.waitLine(t, "node is registered")
	})
	if err := unix.Mount("tmpfs", node().RootDir, "tmpfs", 0, "size=200m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(node().RootDir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		writeConfig(t, config)
	})
	t.Cleanup(func() { stopAgent(t, unix.SIGTERM) })
	t.Cleanup(func() { nothingLeft(t) }) // the agent finds what a pod has left by its directory, which the unmount removes
	writeConfig(t, withSettings(config, settings))
	mark := markLog(t)
	startAgent(t)
	mark.waitLine(t, "node is registered")
}

// waitDiskPressure waits until the node's DiskPressure condition has that status.
func waitDiskPressure(t *testing.T, want corev1.ConditionStatus) {
	t.Helper()
	eventually(t, fmt.Sprintf("the node says DiskPressure=%s", want), func() (string, bool) {
		n := &corev1.Node{}
		if err := api.Core.Get().Resource("nodes").Name(node().Name).Do(t.Context()).Into(n); err != nil {
			return err.Error(), false
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeDiskPressure {
				return string(c.Status) + " " + c.Reason, c.Status == want
			}
		}
		return "no such condition", false
	})
}

// TestLongEviction fills the node's disk. The pod that fills it is evicted and shows the reason, no other pod is
// disturbed, new pods are rejected, and the condition ends when the disk has free space again.
func TestLongEviction(t *testing.T) {
	clean(t)
	smallRoot(t, "evictionHard: {nodefs.available: 100Mi}\nevictionPressureTransitionPeriod: 12s\n")
	sameAgent(t)
	bystander(t)
	apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: hog}
spec:
  terminationGracePeriodSeconds: 30
  containers:
  - name: app
    image: %s
    command: [sh, -c, "dd if=/dev/zero of=/data/big bs=1M count=150; while true; do sleep 1; done"]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, emptyDir: {}}]
`, testbed.BusyboxImage))
	failed := func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed }
	hog := waitPod(t, "hog", "is evicted", failed)
	const message = "The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: "
	if st := hog.Status; st.Reason != "Evicted" || !strings.HasPrefix(st.Message, message) ||
		condition(hog, corev1.DisruptionTarget) != corev1.ConditionTrue {
		t.Errorf("eviction: got %s\nwant reason Evicted, message %q…, and condition DisruptionTarget",
			describe(hog), message)
	}
	waitEvent(t, "hog", "Evicted", "The node was low on resource: ephemeral-storage.")
	waitNodeEvent(t, "EvictionThresholdMet", "Attempting to reclaim ephemeral-storage")
	waitDiskPressure(t, corev1.ConditionTrue)
	apply(t, fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: late}, "+
		"spec: {nodeName: %s, containers: [{name: app, image: %q}]}}", node().Name, testbed.PauseImage))
	late := waitPod(t, "late", "is rejected", failed)
	if late.Status.Reason != "Evicted" ||
		!strings.Contains(late.Status.Message, "The node had condition: [DiskPressure]. ") {
		t.Errorf("rejection: got %s\nwant reason Evicted and the condition DiskPressure in the message", describe(late))
	}
	waitDiskPressure(t, corev1.ConditionFalse)
}
