//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/cgroups"

	"github.com/nodelet/nodelet/test/testbed"
)

// needCgroup2 skips a test on machines with cgroup v1.
func needCgroup2(t *testing.T) {
	t.Helper()
	if !cgroups.IsCgroup2UnifiedMode() {
		t.Skip("this machine has cgroup v1: use make vm2 T=root")
	}
}

// meminfo reads a value of /proc/meminfo in bytes.
func meminfo(t *testing.T, field string) (bytes int64) {
	t.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if n, _ := fmt.Sscanf(line, field+": %d kB", &bytes); n == 1 {
			return bytes << 10
		}
	}
	t.Fatalf("/proc/meminfo has no %s", field)
	return 0
}

// swapPod has a container for each rule of LimitedSwap.
const swapPod = `
apiVersion: v1
kind: Pod
metadata: {name: swap, namespace: default}
spec:
  nodeName: %[1]s
  terminationGracePeriodSeconds: 1
  containers:
  - {name: share, image: %[2]q, command: [sleep, "3600"], resources: {requests: {memory: 256Mi},
    limits: {memory: 512Mi}}}
  - {name: whole, image: %[2]q, command: [sleep, "3600"], resources: {requests: {memory: 64Mi}, limits: {memory: 64Mi}}}
  - {name: without, image: %[2]q, command: [sleep, "3600"]}
`

// TestLongSwap checks that with LimitedSwap a container gets the share of the node's swap that its memory request is of
// the node's memory, and that a container gets none if it has no request, or a limit equal to the request.
func TestLongSwap(t *testing.T) {
	needCgroup2(t)
	swap := meminfo(t, "SwapTotal")
	if swap == 0 {
		t.Skip("this machine has no swap: use make vm2 T=root")
	}
	clean(t)
	configure(t, "memorySwap: {swapBehavior: LimitedSwap}\n")
	apply(t, fmt.Sprintf(swapPod, node().Name, testbed.BusyboxImage))
	waitReady(t, "swap")
	page := int64(os.Getpagesize())
	share := int64(float64(256<<20) / float64(meminfo(t, "MemTotal")) * float64(swap))
	expect(t, "swap", "share", "cat /sys/fs/cgroup/memory.swap.max", fmt.Sprint(share/page*page))
	expect(t, "swap", "whole", "cat /sys/fs/cgroup/memory.swap.max", "0")
	expect(t, "swap", "without", "cat /sys/fs/cgroup/memory.swap.max", "0")
}
