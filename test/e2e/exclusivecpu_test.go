//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/testbed"
)

// staticCPUs are settings under which one CPU is left to containers that have it alone.
const staticCPUs = `
cpuManagerPolicy: static
cpuManagerReconcilePeriod: 1s
reservedSystemCPUs: "0"
`

// TestLongExclusiveCPUs gives a container a CPU of its own and lets the kubelet and nodelet take the node over from
// each other: no container changes its CPUs. The machine of the test needs two CPUs.
func TestLongExclusiveCPUs(t *testing.T) {
	clean(t)
	own := readConfig(t)
	stopAgent(t, unix.SIGTERM)
	t.Cleanup(func() {
		stopAgent(t, unix.SIGTERM)
		forgetCPUs(t)
		writeConfig(t, own)
		startAgent(t)
		if err := node().WaitReady(context.Background(), time.Minute); err != nil {
			t.Error(err)
		}
	})
	forgetCPUs(t)
	writeConfig(t, withSettings(own, staticCPUs))
	startKind(t, testbed.Kubelet)

	apply(t, cpuPod("shared", ""))
	waitReady(t, time.Minute, "shared")
	all := cpusOf(t, "shared")
	apply(t, cpuPod("alone", "1"))
	waitReady(t, time.Minute, "alone")
	alone := cpusOf(t, "alone")
	if alone == all || strings.ContainsAny(alone, "-,") {
		t.Fatalf("the kubelet gave the container CPUs %s of %s, want one", alone, all)
	}
	waitCPUs(t, "shared", "0")

	for i, kind := range []testbed.AgentKind{testbed.Nodelet, testbed.Kubelet, testbed.Nodelet} {
		switchAgent(t, kind, fmt.Sprint("marker-", i))
		if got := cpusOf(t, "alone"); got != alone {
			t.Errorf("after the switch to %s: container alone has CPUs %s, want %s", kind, got, alone)
		}
		if got := cpusOf(t, "shared"); got != "0" {
			t.Errorf("after the switch to %s: container shared has CPUs %s, want 0", kind, got)
		}
	}

	// From here on, nodelet runs. No CPU is left, so a second pod is refused, until the first one has gone.
	kubectl(t, "delete", "pod", "alone", "--timeout=60s")
	waitCPUs(t, "shared", all)
	apply(t, cpuPod("next", "1"))
	waitReady(t, time.Minute, "next")
	if got := cpusOf(t, "next"); got != alone {
		t.Errorf("the next container has CPUs %s, want %s", got, alone)
	}
	waitCPUs(t, "shared", "0")
	quota := kubectl(t, "exec", "next", "--", "sh", "-c", // the file of cgroup v2, or that of v1
		"cat /sys/fs/cgroup/cpu.max 2>/dev/null || cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us")
	if quota != "-1" && !strings.HasPrefix(quota, "max ") {
		t.Errorf("the container has the CPU quota %q, want none", quota)
	}
	kubectl(t, "delete", "pod", "next", "shared", "--timeout=60s")
}

// forgetCPUs removes the state files, which belong to one policy. No pod may run.
func forgetCPUs(t *testing.T) {
	t.Helper()
	for _, name := range []string{"cpu_manager_state", "memory_manager_state"} {
		if err := os.RemoveAll(filepath.Join(node().RootDir, name)); err != nil {
			t.Error(err)
		}
	}
}

// cpuPod returns a pod that requests CPUs, with a limit of the same size; none if cpus is empty.
func cpuPod(name, cpus string) string {
	resources := ""
	if cpus != "" {
		resources = fmt.Sprintf(", resources: {limits: {cpu: %q, memory: 32Mi}}", cpus)
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: %s, command: [sleep, "100000"]%s}]
`, name, testbed.BusyboxImage, resources)
}

// cpusOf returns the CPUs that a process in the pod may use, as the kernel lists them.
func cpusOf(t *testing.T, pod string) string {
	t.Helper()
	out := kubectl(t, "exec", pod, "--", "sh", "-c", "grep Cpus_allowed_list /proc/self/status")
	return strings.TrimSpace(strings.TrimPrefix(out, "Cpus_allowed_list:"))
}

// waitCPUs waits until the processes of a pod may use these CPUs.
func waitCPUs(t *testing.T, pod, want string) {
	t.Helper()
	eventually(t, 30*time.Second, fmt.Sprintf("pod %s uses CPUs %s", pod, want), func() (string, bool) {
		got := cpusOf(t, pod)
		return got, got == want
	})
}
