//go:build e2e

package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

// overrunYAML has three pods that each exceed another kind of limit, one that stays below its limits, and one without
// limits.
const overrunYAML = `
apiVersion: v1
kind: Pod
metadata: {name: over-volume}
spec:
  containers:
  - name: app
    image: %[1]s
    command: [sh, -c, "dd if=/dev/zero of=/scratch/big bs=1M count=3; while true; do sleep 1; done"]
    volumeMounts: [{name: scratch, mountPath: /scratch}]
  volumes: [{name: scratch, emptyDir: {sizeLimit: 1Mi}}]
---
apiVersion: v1
kind: Pod
metadata: {name: over-pod}
spec:
  containers:
  - name: app
    image: %[1]s
    command: [sh, -c, "dd if=/dev/zero of=/big bs=1M count=5; while true; do sleep 1; done"]
    resources: {limits: {ephemeral-storage: 2Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: over-log}
spec:
  containers:
  - name: loud
    image: %[1]s
    command: [sh, -c, "dd if=/dev/zero bs=1M count=2 | tr '\\0' x | fold -w 1000; while true; do sleep 1; done"]
    resources: {limits: {ephemeral-storage: 1Mi}}
  - name: quiet
    image: %[1]s
    command: [sh, -c, "while true; do sleep 1; done"]
    resources: {limits: {ephemeral-storage: 50Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: frugal}
spec:
  containers:
  - name: app
    image: %[1]s
    command:
    - sh
    - -c
    - |
      dd if=/dev/zero of=/some bs=1M count=3
      dd if=/dev/zero of=/scratch/some bs=1M count=3
      while true; do sleep 1; done
    resources: {limits: {ephemeral-storage: 20Mi}}
    volumeMounts: [{name: scratch, mountPath: /scratch}]
  volumes: [{name: scratch, emptyDir: {sizeLimit: 10Mi}}]
---
apiVersion: v1
kind: Pod
metadata: {name: free}
spec:
  containers:
  - name: app
    image: %[1]s
    command: [sh, -c, "dd if=/dev/zero of=/big bs=1M count=30; while true; do sleep 1; done"]
`

// TestLongOverrun checks that a pod that exceeds a limit of its local storage is evicted with the kubelet's message,
// and without the condition DisruptionTarget. Pods below their limits, or without limits, keep running.
func TestLongOverrun(t *testing.T) {
	clean(t)
	sameAgent(t)
	bystander(t)
	apply(t, fmt.Sprintf(overrunYAML, testbed.BusyboxImage))
	for pod, message := range map[string]string{
		"over-volume": `Usage of EmptyDir volume "scratch" exceeds the limit "1Mi". `,
		"over-pod":    `Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. `,
		"over-log":    `Container loud exceeded its local ephemeral storage limit "1Mi". `,
	} {
		p := waitPod(t, pod, "is evicted",
			func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		if p.Status.Reason != "Evicted" || p.Status.Message != message {
			t.Errorf("%s: got reason %q, message %q; want %q, %q", pod, p.Status.Reason, p.Status.Message, "Evicted", message)
		}
		if condition(p, corev1.DisruptionTarget) != "" {
			t.Errorf("%s: got condition DisruptionTarget, want none: %s", pod, describe(p))
		}
		waitEvent(t, pod, "Evicted", message)
	}
	for _, pod := range []string{"frugal", "free"} {
		if p := getPod(t, pod); !ready(p) || containerStatus(p, "app").RestartCount != 0 {
			t.Errorf("%s: got %s\nwant it Ready without a restart", pod, describe(p))
		}
	}
}
