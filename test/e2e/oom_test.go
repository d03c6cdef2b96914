//go:build e2e

package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

// TestOutOfMemory checks the reason OOMKilled of a container that the kernel has killed at its limit, also where its
// exit ends the pod.
func TestOutOfMemory(t *testing.T) {
	clean(t)
	apply(t, `{apiVersion: v1, kind: Pod, metadata: {name: greedy}, spec: {restartPolicy: Never, nodeName: `+node().Name+`,
		containers: [{name: app, image: "`+testbed.BusyboxImage+
		`", command: [tail, /dev/zero], resources: {limits: {memory: 24Mi}}}]}}`)
	p := waitPod(t, "greedy", "has failed",
		func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if end := containerStatus(p, "app").State.Terminated; end == nil || end.Reason != "OOMKilled" || end.ExitCode != 137 {
		t.Errorf("termination state: got %+v, want reason OOMKilled and exit code 137", end)
	}
}

// greedyPod has a first process that waits for its child, which runs out of memory.
const greedyPod = `
apiVersion: v1
kind: Pod
metadata: {name: greedy, namespace: default}
spec:
  nodeName: %[1]s
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: %[2]q
    command: [sh, -c, "tail /dev/zero; exit 7"]
    resources: {limits: {memory: 32Mi}}
`

// TestLongOOM checks that a container that runs out of memory ends with all its processes, and with
// singleProcessOOMKill only with the process that the kernel chooses.
func TestLongOOM(t *testing.T) {
	needCgroup2(t)
	clean(t)
	exit := func(t *testing.T) *corev1.ContainerStateTerminated {
		t.Helper()
		apply(t, fmt.Sprintf(greedyPod, node().Name, testbed.BusyboxImage))
		pod := waitPod(t, "greedy", "has failed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		return containerStatus(pod, "c").State.Terminated
	}
	t.Run("the whole container", func(t *testing.T) {
		if e := exit(t); e.Reason != "OOMKilled" || e.ExitCode != 137 {
			t.Errorf("got %s, exit code %d, want OOMKilled, 137", e.Reason, e.ExitCode)
		}
	})
	t.Run("one process", func(t *testing.T) {
		configure(t, "singleProcessOOMKill: true\n")
		if e := exit(t); e.ExitCode != 7 {
			t.Errorf("got %s, exit code %d, want that of the first process, 7", e.Reason, e.ExitCode)
		}
	})
}
