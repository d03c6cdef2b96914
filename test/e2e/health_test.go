//go:build e2e

package e2e

import (
	"strings"
	"testing"

	"github.com/nodelet/nodelet/test/csi/fake"
	"github.com/nodelet/nodelet/test/testbed"
)

// TestLongVolumeHealth lets a driver report that the volume of a running pod is abnormal. With the feature gate on, a
// metric and an event report it.
func TestLongVolumeHealth(t *testing.T) {
	clean(t)
	configure(t, "featureGates: {CSIVolumeHealth: true}\n")
	d := startCSI(t)
	handle := d.createVolume(t, "patient", 16<<20)
	apply(t, csiDriverYAML+volumeYAML("pv-patient", "patient", handle, "16Mi", "Filesystem")+patientYAML)
	waitReady(t, "patient")
	const metric = `kubelet_volume_stats_health_status_abnormal{namespace="default",persistentvolumeclaim="patient"} `
	metricIs := func(value string) func() (string, bool) {
		return func() (string, bool) {
			text := scrape(t, "metrics")
			return text, strings.Contains(text, metric+value+"\n")
		}
	}
	eventually(t, "the metric reports a normal volume", metricIs("0"))
	if err := fake.Sicken(d.state, handle, "the disk is on fire"); err != nil {
		t.Fatal(err)
	}
	// The event must come without a scrape.
	waitEvent(t, "patient", "VolumeConditionAbnormal", "Volume data: the disk is on fire")
	eventually(t, "the metric reports an abnormal volume", metricIs("1"))
	kubectl(t, "delete", "pod", "patient", "--timeout=5m")
	kubectl(t, "delete", "pvc", "patient", "--timeout=5m")
	d.waitReturned(t)
}

const patientYAML = `
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: patient}
spec: {accessModes: [ReadWriteOnce], storageClassName: manual, volumeName: pv-patient,
  resources: {requests: {storage: 16Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: patient}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: ` + testbed.BusyboxImage + `
    command: [sh, -c, 'while :; do sleep 1; done']
    volumeMounts: [{name: data, mountPath: /data}]
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: patient}}
`
