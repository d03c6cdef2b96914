//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

const csiDriverYAML = `
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: ` + hostDriver + `}
spec: {attachRequired: true, podInfoOnMount: true, fsGroupPolicy: File, volumeLifecycleModes: [Persistent, Ephemeral]}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: manual}
provisioner: none.nodelet.test
allowVolumeExpansion: true
`

// volumeYAML is a PersistentVolume that is reserved for one claim.
func volumeYAML(name, claim, handle, size, mode string) string {
	return fmt.Sprintf(`
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: %s}
spec:
  capacity: {storage: %s}
  accessModes: [ReadWriteOnce]
  volumeMode: %s
  persistentVolumeReclaimPolicy: Retain
  storageClassName: manual
  claimRef: {namespace: default, name: %s}
  csi: {driver: %s, volumeHandle: %s, fsType: ext4}
`, name, size, mode, claim, hostDriver, handle)
}

// keeperYAML is a StatefulSet. Its first pods write a file, and later pods check that the file is unchanged.
const keeperYAML = `
apiVersion: v1
kind: Service
metadata: {name: keeper}
spec: {clusterIP: None, selector: {app: keeper}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: keeper}
spec:
  serviceName: keeper
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: keeper}}
  template:
    metadata: {labels: {app: keeper}}
    spec:
      terminationGracePeriodSeconds: 1
      securityContext: {fsGroup: 4321}
      containers:
      - name: app
        image: ` + testbed.BusyboxImage + `
        command:
        - sh
        - -c
        - |
          cd /data || exit 1
          if [ -f sum ]; then sha256sum -c sum || exit 1; echo found >>log
          else
            dd if=/dev/urandom of=blob bs=64k count=64 && sha256sum blob >sum && sync && echo made >>log || exit 1
          fi
          touch /ready
          while :; do sleep 1; done
        readinessProbe: {exec: {command: [test, -f, /ready]}, periodSeconds: 1, timeoutSeconds: 10,
          failureThreshold: 100}
        volumeMounts: [{name: data, mountPath: /data}, {name: data, mountPath: /part, subPath: sub/part}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      storageClassName: manual
      resources: {requests: {storage: 32Mi}}
`

var keepers = []string{"keeper-0", "keeper-1"}

// TestLongClaim runs pods with claims of a CSI driver that attaches volumes. Driver and agent are killed, a volume in
// use is expanded, and the pods are deleted. The data stays unchanged, and every mount, device and attachment is
// removed.
func TestLongClaim(t *testing.T) {
	clean(t)
	d := startCSI(t)
	yaml := csiDriverYAML
	var handles []string
	for _, pod := range keepers {
		handles = append(handles, d.createVolume(t, pod, 32<<20))
		yaml += volumeYAML("pv-"+pod, "data-"+pod, handles[len(handles)-1], "32Mi", "Filesystem")
	}
	apply(t, yaml)
	t.Cleanup(func() {
		for _, pod := range keepers {
			_, _ = tb.Kubectl(context.Background(), "delete", "pvc", "data-"+pod, "--ignore-not-found", "--timeout=30s")
		}
	})
	apply(t, keeperYAML)
	t.Cleanup(func() {
		_, _ = tb.Kubectl(context.Background(), "delete", "statefulset", "keeper", "--ignore-not-found", "--timeout=5m")
	})
	waitKeepers(t, nil)
	if log := keeperLog(t, "keeper-0"); log != "made" {
		t.Errorf("log of the first pod: got %q, want %q", log, "made")
	}
	if got := kubectl(t, "exec", "keeper-0", "--", "stat", "-c", "%g", "/data/blob"); got != "4321" {
		t.Errorf("group of the files: got %q, want the fsGroup 4321", got)
	}

	t.Log("the next pods use the same volumes")
	replaceKeepers(t)
	waitKeepers(t, nil)

	t.Log("driver and agent are killed while pods run")
	before := map[string]string{}
	for _, pod := range keepers {
		before[pod] = containerStatus(getPod(t, pod), "app").ContainerID
	}
	stopAgent(t, unix.SIGKILL)
	d.kill()
	startAgent(t)
	d.start(t)
	waitKeepers(t, before)

	t.Log("driver and agent are killed while pods start and stop")
	for round := range 4 {
		replaceKeepers(t)
		time.Sleep(time.Duration(rand.IntN(2500)) * time.Millisecond)
		stopAgent(t, unix.SIGKILL)
		if round%2 == 0 {
			d.kill()
		}
		startAgent(t)
		if round%2 == 0 {
			d.start(t)
		}
		waitKeepers(t, nil)
	}
	if log := keeperLog(t, "keeper-1"); strings.Count(log, "made") != 1 || strings.Count(log, "found") < 5 {
		t.Errorf("log of the pods of keeper-1: got %q, want \"made\" once and \"found\" at least five times", log)
	}

	expandKeeper(t, d, handles[0])

	kubectl(t, "delete", "statefulset", "keeper", "--timeout=120s")
	for _, pod := range keepers {
		waitGone(t, pod)
	}
	d.waitReturned(t)
}

// replaceKeepers deletes all pods. Their controller creates new ones.
func replaceKeepers(t *testing.T) {
	t.Helper()
	kubectl(t, "delete", "pod", "--wait=false", keepers[0], keepers[1])
}

// waitKeepers waits until all pods are Ready and not deleted. Pods that the map names must have these containers.
func waitKeepers(t *testing.T, containers map[string]string) {
	t.Helper()
	for _, pod := range keepers {
		p := waitPod(t, pod, "is Ready and not deleted", func(p *corev1.Pod) bool {
			return p.DeletionTimestamp == nil && ready(p)
		})
		if want := containers[pod]; want != "" && containerStatus(p, "app").ContainerID != want {
			t.Errorf("container of %s: got %s, want %s", pod, containerStatus(p, "app").ContainerID, want)
		}
		if s := containerStatus(p, "app"); s.RestartCount > 0 {
			t.Errorf("%s: got %d restarts, want none: %+v", pod, s.RestartCount, s.LastTerminationState)
		}
	}
}

func keeperLog(t *testing.T, pod string) string {
	t.Helper()
	return kubectl(t, "exec", pod, "--", "cat", "/data/log")
}

// expandKeeper expands a volume while its pod runs. The testbed has no external-resizer, so this function does its
// work.
func expandKeeper(t *testing.T, d *csiDriver, handle string) {
	t.Helper()
	kubectl(t, "patch", "pvc", "data-keeper-0", "-p", `{"spec":{"resources":{"requests":{"storage":"96Mi"}}}}`)
	_, err := d.controller(t).ControllerExpandVolume(t.Context(), &csipb.ControllerExpandVolumeRequest{VolumeId: handle,
		CapacityRange: &csipb.CapacityRange{RequiredBytes: 96 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	kubectl(t, "patch", "pv", "pv-keeper-0", "-p", `{"spec":{"capacity":{"storage":"96Mi"}}}`)
	kubectl(t, "patch", "pvc", "data-keeper-0", "--subresource=status", "-p",
		`{"status":{"allocatedResources":{"storage":"96Mi"},`+
			`"allocatedResourceStatuses":{"storage":"NodeResizePending"},`+
			`"conditions":[{"type":"FileSystemResizePending","status":"True"}]}}`)
	grown := func() (string, bool) {
		got := kubectl(t, "get", "pvc", "data-keeper-0", "-o",
			`jsonpath={.status.capacity.storage} {.status.allocatedResourceStatuses} `+
				`{.status.conditions[?(@.type=="FileSystemResizePending")].status}`)
		return got, strings.TrimSpace(got) == "96Mi"
	}
	refused := func() (string, bool) { // some kernels let only CAP_SYS_RESOURCE grow a mounted ext4
		text, err := os.ReadFile(node().AgentLog())
		return fmt.Sprint(err), strings.Contains(string(text), "cannot grow while it is in use")
	}
	inUse := false
	eventually(t, "the driver is asked to grow the volume", func() (string, bool) {
		seen, ok := grown()
		_, inUse = refused()
		return seen, ok || inUse
	})
	if inUse {
		t.Log("this kernel cannot grow a volume in use; the next pod gets the larger volume")
		replaceKeepers(t)
		waitKeepers(t, nil)
		eventually(t, "the claim has the new size", grown)
	}
	var kib int
	df := kubectl(t, "exec", "keeper-0", "--", "df", "-k", "/data")
	lines := strings.Split(df, "\n")
	if _, err := fmt.Sscan(strings.Fields(lines[len(lines)-1])[1], &kib); err != nil || kib < 80<<10 {
		t.Errorf("size that the pod sees: got %d KiB (%v), want at least %d KiB:\n%s", kib, err, 80<<10, df)
	}
	waitEvent(t, "keeper-0", "FileSystemResizeSuccessful", "pv-keeper-0")
}

// TestLongBlock runs a pod with a claim with volumeMode Block, an inline volume, a generic ephemeral volume, and a
// local PersistentVolume.
func TestLongBlock(t *testing.T) {
	clean(t)
	d := startCSI(t)
	local := t.TempDir()
	raw, own := d.createVolume(t, "raw", 8<<20), d.createVolume(t, "own", 16<<20)
	apply(t, csiDriverYAML+volumeYAML("pv-raw", "raw", raw, "8Mi", "Block")+
		volumeYAML("pv-own", "writer-own", own, "16Mi", "Filesystem")+fmt.Sprintf(localYAML, local, node().Name))
	apply(t, fmt.Sprintf(blockPodYAML, "writer",
		"echo precious | dd of=/dev/raw bs=512 conv=sync && echo kept >/local/file && touch /own/file && touch /ready"))
	waitReady(t, "writer")
	got, want := kubectl(t, "exec", "writer", "--", "cat",
		"/inline/context.json"), `"csi.storage.k8s.io/pod.name":"writer"`
	if !strings.Contains(got, want) {
		t.Errorf("volume context of the inline volume: got %s, want %s", got, want)
	}
	killAgent(t)
	kubectl(t, "delete", "pod", "writer", "--timeout=5m")
	apply(t, fmt.Sprintf(strings.Replace(blockPodYAML, ownVolume, "{name: own, emptyDir: {}}", 1), "reader",
		`[ "$(dd if=/dev/raw bs=8 count=1)" = precious ] && [ "$(cat /local/file)" = kept ] && touch /ready`))
	waitReady(t, "reader")
	kubectl(t, "delete", "pod", "reader", "--timeout=5m")
	d.waitReturned(t)
}

const localYAML = `
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: raw}
spec: {accessModes: [ReadWriteOnce], volumeMode: Block, storageClassName: manual, volumeName: pv-raw,
  resources: {requests: {storage: 8Mi}}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv-local}
spec:
  capacity: {storage: 1Mi}
  accessModes: [ReadWriteOnce]
  storageClassName: manual
  claimRef: {namespace: default, name: local}
  local: {path: %s}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In,
    values: [%s]}]}]}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: local}
spec: {accessModes: [ReadWriteOnce], storageClassName: manual, volumeName: pv-local,
  resources: {requests: {storage: 1Mi}}}
`

const ownVolume = `{name: own, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce],
	storageClassName: manual, resources: {requests: {storage: 16Mi}}}}}}`

const blockPodYAML = `
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: 4321}
  containers:
  - name: app
    image: ` + testbed.BusyboxImage + `
    command: [sh, -c, '%s || exit 1; while :; do sleep 1; done']
    readinessProbe: {exec: {command: [test, -f, /ready]}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 100}
    volumeDevices: [{name: raw, devicePath: /dev/raw}]
    volumeMounts: [{name: inline, mountPath: /inline}, {name: own, mountPath: /own}, {name: local, mountPath: /local}]
  volumes:
  - {name: raw, persistentVolumeClaim: {claimName: raw}}
  - {name: inline, csi: {driver: ` + hostDriver + `}}
  - {name: local, persistentVolumeClaim: {claimName: local}}
  - ` + ownVolume + `
`
