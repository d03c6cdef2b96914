//go:build e2e

package e2e

import (
	"context"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/testbed"
)

const lunYAML = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv-lun}
spec:
  capacity: {storage: 32Mi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: manual
  claimRef: {namespace: default, name: lun}
  iscsi: {targetPortal: "127.0.0.1:1", iqn: "iqn.2026-01.test.nodelet:absent", lun: 7}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: lun}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: manual
  volumeName: pv-lun
  resources: {requests: {storage: 32Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: lun}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: app, image: ` + testbed.BusyboxImage +
	`, command: [sleep, "3600"], volumeMounts: [{name: data, mountPath: /data}]}
  volumes: [{name: data, persistentVolumeClaim: {claimName: lun}}]
`

// TestISCSI checks that the controller manager attaches a LUN in the Node's status under the name that the agent
// uses, and detaches it when the agent does not use it any more. No target answers in this test; test/vm has a real
// one.
func TestISCSI(t *testing.T) {
	clean(t)
	t.Cleanup(func() {
		_, _ = tb.Kubectl(context.Background(), "delete", "pod/lun", "pvc/lun", "pv/pv-lun", "--ignore-not-found",
			"--timeout=5m")
	})
	apply(t, lunYAML)
	onNode := func() string {
		return kubectl(t, "get", "node", node().Name, "-o",
			"jsonpath={.status.volumesInUse} {.status.volumesAttached[*].name}")
	}
	const name = "kubernetes.io/iscsi/127.0.0.1:1:iqn.2026-01.test.nodelet:absent:7"
	eventually(t, "the agent has tried to mount the LUN", func() (string, bool) {
		text := kubectl(t, "get", "events", "--field-selector=involvedObject.name=lun,reason=FailedMount",
			"-o", "jsonpath={.items[*].message}")
		return text, strings.Contains(text, `MountVolume.MountDevice failed for volume "pv-lun" : iscsi: `)
	})
	if got := onNode(); got != `["`+name+`"] `+name {
		t.Errorf("volumes in use and attached: got %s, want %s in both", got, name)
	}
	stopAgent(t, unix.SIGKILL)
	startAgent(t)
	kubectl(t, "delete", "pod", "lun", "--timeout=5m")
	eventually(t, "the LUN is detached",
		func() (string, bool) { got := strings.TrimSpace(onNode()); return got, got == "" })
}
