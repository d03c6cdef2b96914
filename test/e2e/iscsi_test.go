//go:build e2e

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

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
  storageClassName: by-hand
  claimRef: {namespace: default, name: lun}
  iscsi: {targetPortal: "127.0.0.1:1", iqn: "iqn.2026-01.test.nodelet:nobody", lun: 7}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: lun}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: by-hand
  volumeName: pv-lun
  resources: {requests: {storage: 32Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: lun}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: app, image: ` + testbed.BusyboxImage + `, command: [sleep, "3600"], volumeMounts: [{name: data, mountPath: /data}]}
  volumes: [{name: data, persistentVolumeClaim: {claimName: lun}}]
`

// TestISCSI: the controller manager attaches a LUN in the Node's status, by the name that the agent has for it, and detaches it when
// the agent has given it up. Nobody answers as its target; those that do are in the virtual machine of test/vm.
func TestISCSI(t *testing.T) {
	clean(t)
	t.Cleanup(func() {
		_, _ = tb.Kubectl(context.Background(), "delete", "pod/lun", "pvc/lun", "pv/pv-lun", "--ignore-not-found", "--timeout=60s")
	})
	apply(t, lunYAML)
	onNode := func() string {
		return kubectl(t, "get", "node", node().Name, "-o", "jsonpath={.status.volumesInUse} {.status.volumesAttached[*].name}")
	}
	const name = "kubernetes.io/iscsi/127.0.0.1:1:iqn.2026-01.test.nodelet:nobody:7"
	eventually(t, 60*time.Second, "the LUN is tried", func() (string, bool) {
		said := kubectl(t, "get", "events", "--field-selector=involvedObject.name=lun,reason=FailedMount", "-o", "jsonpath={.items[*].message}")
		return said, strings.Contains(said, `MountVolume.MountDevice failed for volume "pv-lun" : iscsi: `)
	})
	if got := onNode(); got != `["`+name+`"] `+name {
		t.Errorf("in use and attached: %s", got)
	}
	stopAgent(t, unix.SIGKILL)
	startAgent(t)
	kubectl(t, "delete", "pod", "lun", "--timeout=60s")
	eventually(t, 60*time.Second, "the LUN is detached", func() (string, bool) { got := strings.TrimSpace(onNode()); return got, got == "" })
}
