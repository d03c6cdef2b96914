//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

// resizePod is a pod whose container a is resized in place. A change of memory restarts its container b.
const resizePod = `
apiVersion: v1
kind: Pod
metadata: {name: resize}
spec:
  nodeName: %[1]s
  terminationGracePeriodSeconds: 1
  containers:
  - {name: a, image: %[2]q, command: [sleep, "3600"],
     resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}}
  - {name: b, image: %[2]q, command: [sleep, "3600"], resizePolicy: [{resourceName: memory,
    restartPolicy: RestartContainer}],
     resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}}
`

// TestLongResize resizes a running pod up and down, with and without restarts of its containers, while no agent runs,
// and kills the agent after a resize. It checks the status and the cgroups.
func TestLongResize(t *testing.T) {
	clean(t)
	apply(t, fmt.Sprintf(resizePod, node().Name, testbed.BusyboxImage))
	waitReady(t, "resize")
	t.Run("up", func(t *testing.T) {
		resize(t, "a", "100m", "64Mi", "500m", "128Mi")
		kernelHas(t, "a", 102, 50000, 128<<20)
	})
	t.Run("limits alone", func(t *testing.T) {
		resize(t, "a", "100m", "64Mi", "400m", "96Mi")
		kernelHas(t, "a", 102, 40000, 96<<20)
	})
	t.Run("down", func(t *testing.T) {
		resize(t, "a", "50m", "32Mi", "100m", "64Mi")
		kernelHas(t, "a", 51, 10000, 64<<20)
	})
	t.Run("with a restart", func(t *testing.T) {
		resize(t, "b", "100m", "64Mi", "200m", "128Mi")
		pod := waitPod(t, "resize", "b was restarted", func(p *corev1.Pod) bool {
			return containerStatus(p, "b").RestartCount == 1 && ready(p)
		})
		if n := containerStatus(pod, "a").RestartCount; n != 0 {
			t.Errorf("restarts of a: got %d, want none", n)
		}
		kernelHas(t, "b", 102, 20000, 128<<20)
	})
	t.Run("below what is in use", belowUse)
	t.Run("while the agent is away", func(t *testing.T) {
		stopAgent(t, unix.SIGKILL)
		patchSize(t, "a", "200m", "64Mi", "300m", "96Mi")
		startAgent(t)
		resized(t, "a", "300m", "96Mi")
		kernelHas(t, "a", 204, 30000, 96<<20)
	})
	t.Run("the agent is killed", func(t *testing.T) {
		killAgent(t)
		resized(t, "a", "300m", "96Mi")
		kernelHas(t, "a", 204, 30000, 96<<20)
		if n := containerStatus(getPod(t, "resize"), "b").RestartCount; n != 1 {
			t.Errorf("restarts of b: got %d, want 1", n)
		}
	})
}

// noMemoryPod is a pod whose container a has no memory limit.
const noMemoryPod = `
apiVersion: v1
kind: Pod
metadata: {name: resize}
spec:
  nodeName: %[1]s
  terminationGracePeriodSeconds: 1
  containers:
  - {name: a, image: %[2]q, command: [sleep, "3600"], resources: {requests: {cpu: 100m}, limits: {cpu: 200m}}}
`

// TestLongResizeOfCPU resizes a container without a memory limit.
func TestLongResizeOfCPU(t *testing.T) {
	clean(t)
	apply(t, fmt.Sprintf(noMemoryPod, node().Name, testbed.BusyboxImage))
	waitReady(t, "resize")
	patchResources(t, `{"containers":[{"name":"a","resources":{"requests":{"cpu":"200m"},"limits":{"cpu":"500m"}}}]}`)
	resized(t, "a", "500m", "0")
}

// waitingPod is a pod whose init container ends when it finds a file.
const waitingPod = `
apiVersion: v1
kind: Pod
metadata: {name: resize}
spec:
  nodeName: %[1]s
  terminationGracePeriodSeconds: 1
  initContainers:
  - {name: first, image: %[2]q, command: [sh, -c, "until [ -e /end ]; do sleep 0.2; done"],
     resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}}
  containers:
  - {name: a, image: %[2]q, command: [sleep, "3600"],
     resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}}
`

// TestLongResizeOfInitContainer resizes an init container that runs, and an app container that has not started yet.
func TestLongResizeOfInitContainer(t *testing.T) {
	clean(t)
	apply(t, fmt.Sprintf(waitingPod, node().Name, testbed.BusyboxImage))
	waitPod(t, "resize", "runs its init container",
		func(p *corev1.Pod) bool { return containerStatus(p, "first").State.Running != nil })
	patchResources(t, `{"initContainers":[{"name":"first","resources":{"limits":{"cpu":"500m","memory":"128Mi"}}}]}`)
	resized(t, "first", "500m", "128Mi")
	kernelHas(t, "first", 102, 50000, 128<<20)
	patchSize(t, "a", "200m", "64Mi", "300m", "96Mi")
	letEnd(t, "resize", "first", "/end")
	p := waitReady(t, "resize")
	kernelHas(t, "a", 204, 30000, 96<<20)
	for _, name := range []string{"first", "a"} {
		if n := containerStatus(p, name).RestartCount; n != 0 {
			t.Errorf("restarts of %s: got %d, want none", name, n)
		}
	}
}

// belowUse checks that a memory limit below the current usage is not applied. A condition shows the cause until the
// spec is changed back.
func belowUse(t *testing.T) {
	inside(t, "resize", "a", "sh", "-c", "head -c 40000000 /dev/zero > /dev/shm/use")
	patchSize(t, "a", "50m", "16Mi", "100m", "20Mi")
	waitPod(t, "resize", "reports that the limit is below the usage", func(p *corev1.Pod) bool {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodResizeInProgress && c.Reason == corev1.PodReasonError {
				return strings.Contains(c.Message, "below current usage")
			}
		}
		return false
	})
	kernelHas(t, "a", 51, 10000, 64<<20)
	inside(t, "resize", "a", "rm", "/dev/shm/use")
	resize(t, "a", "50m", "32Mi", "100m", "64Mi")
}

func patchSize(t *testing.T, container, cpuRequest, memoryRequest, cpu, memory string) {
	t.Helper()
	patchResources(t, fmt.Sprintf(
		`{"containers":[{"name":%q,"resources":{"requests":{"cpu":%q,"memory":%q},"limits":{"cpu":%q,"memory":%q}}}]}`,
		container, cpuRequest, memoryRequest, cpu, memory))
}

func patchResources(t *testing.T, spec string) {
	t.Helper()
	patchPodResources(t, "resize", spec)
}

func patchPodResources(t *testing.T, pod, spec string) {
	t.Helper()
	kubectl(t, "patch", "pod", pod, "--subresource", "resize", "--type", "strategic", "-p", `{"spec":`+spec+`}`)
}

func resize(t *testing.T, container, cpuRequest, memoryRequest, cpu, memory string) {
	t.Helper()
	patchSize(t, container, cpuRequest, memoryRequest, cpu, memory)
	resized(t, container, cpu, memory)
}

// resized waits until the status shows the new limits and no pending resize. Until then, a status of the new generation
// must have a condition that says so.
func resized(t *testing.T, container, cpu, memory string) {
	t.Helper()
	waitPod(t, "resize", "is resized", func(p *corev1.Pod) bool {
		st := containerStatus(p, container)
		r, observed := st.Resources, p.Status.ObservedGeneration == p.Generation
		has := r != nil && r.Limits.Cpu().String() == cpu && r.Limits.Memory().String() == memory
		resizes := condition(p, corev1.PodResizeInProgress) != "" || condition(p, corev1.PodResizePending) != ""
		if observed && !has && !resizes && st.State.Running != nil {
			t.Errorf("container %s: got the old resources %+v without a condition about the resize", container, r)
		}
		return observed && has && !resizes
	})
}

// kernelHas checks the cgroup of a container from inside the container.
func kernelHas(t *testing.T, container string, shares, quota, memory int64) {
	t.Helper()
	if cgroups.IsCgroup2UnifiedMode() {
		weight := cgroups.ConvertCPUSharesToCgroupV2Value(uint64(shares))
		expect(t, "resize", container, "cd /sys/fs/cgroup; cat cpu.weight cpu.max memory.max | tr '\\n' ' '",
			fmt.Sprintf("%d %d 100000 %d", weight, quota, memory))
		return
	}
	files := "cpu/cpu.shares cpu/cpu.cfs_quota_us memory/memory.limit_in_bytes"
	expect(t, "resize", container, "cd /sys/fs/cgroup; cat "+files+" | tr '\\n' ' '",
		fmt.Sprintf("%d %d %d", shares, quota, memory))
}
