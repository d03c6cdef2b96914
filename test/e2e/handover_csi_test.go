//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

// TestLongClaimHandover switches a node with mounted CSI volumes from nodelet to the kubelet and back. One pod runs
// all the time, one is deleted under the kubelet, and one is created there. No container restarts, and in the end all
// volumes are detached.
func TestLongClaimHandover(t *testing.T) {
	clean(t)
	d := startCSI(t)
	yaml := csiDriverYAML
	for _, name := range []string{"stay", "leave", "late"} {
		yaml += volumeYAML("pv-"+name, name, d.createVolume(t, name, 16<<20), "16Mi", "Filesystem") + fmt.Sprintf(`---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec: {accessModes: [ReadWriteOnce], storageClassName: manual, volumeName: pv-%s,
  resources: {requests: {storage: 16Mi}}}
`, name, name)
	}
	apply(t, yaml)
	apply(t, fmt.Sprintf(holderYAML, "stay", "stay"))
	apply(t, fmt.Sprintf(holderYAML, "leave", "leave"))
	stay := containerStatus(waitReady(t, "stay"), "app").ContainerID
	waitReady(t, "leave")

	stopAgent(t, unix.SIGTERM)
	if err := node().StartAgent(t.Context(), testbed.Kubelet); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() { // the next test needs nodelet
			_ = node().StopAgent(unix.SIGTERM)
			_ = node().StartAgent(context.Background(), testbed.Nodelet)
		}
	})
	d.waitRegistered(t)
	left := getPod(t, "leave")
	kubectl(t, "delete", "pod", "leave", "--timeout=120s")
	// The kubelet would remove the logs of a deleted pod within a minute.
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Join(node().PodLogsDir, "default_leave_"+string(left.UID))) })
	apply(t, fmt.Sprintf(holderYAML, "late", "late"))
	late := containerStatus(waitReady(t, "late"), "app").ContainerID

	stopAgent(t, unix.SIGTERM)
	startAgent(t)
	d.waitRegistered(t)
	for name, id := range map[string]string{"stay": stay, "late": late} {
		p := waitPod(t, name, "is Ready", func(p *corev1.Pod) bool { return ready(p) })
		if got := containerStatus(p, "app").ContainerID; got != id {
			t.Errorf("container of %s: got %s, want %s", name, got, id)
		}
	}
	kubectl(t, "delete", "pod", "stay", "late", "--timeout=120s")
	d.waitReturned(t)
}

const holderYAML = `
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: ` + testbed.BusyboxImage + `
    command: [sh, -c, "touch /data/here; while :; do sleep 1; done"]
    volumeMounts: [{name: data, mountPath: /data}, {name: data, mountPath: /part, subPath: part}]
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: %s}}
`
