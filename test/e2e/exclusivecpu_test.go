//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/plugins/devices/fake"
	"github.com/nodelet/nodelet/test/testbed"
)

// staticPolicies are settings under which one CPU is left to containers that have it alone, memory is assigned from
// NUMA nodes, and CPU, memory and devices of a container come from one of them.
const staticPolicies = `
cpuManagerPolicy: static
cpuManagerReconcilePeriod: 1s
reservedSystemCPUs: "0"
memoryManagerPolicy: Static
systemReserved: {memory: 64Mi}
reservedMemory: [{numaNode: 0, limits: {memory: 64Mi}}]
topologyManagerPolicy: single-numa-node
`

// TestLongExclusiveCPUs gives a container a CPU, memory and a device of its own, and lets the kubelet and nodelet take
// the node over from each other: no container ever changes its CPUs, and each agent reports the same resources. The
// machine of the test needs two CPUs.
func TestLongExclusiveCPUs(t *testing.T) {
	clean(t)
	own := readConfig(t)
	stopAgent(t, unix.SIGTERM)
	t.Cleanup(func() {
		stopAgent(t, unix.SIGTERM)
		forgetCPUs(t)
		writeConfig(t, own)
		startAgent(t)
		if err := node().WaitReady(context.Background(), limit); err != nil {
			t.Error(err)
		}
	})
	forgetCPUs(t)
	holdMemory(t)
	writeConfig(t, withSettings(own, staticPolicies))
	registration := filepath.Join(node().RootDir, "device-plugins/kubelet.sock")
	if err := os.RemoveAll(registration); err != nil { // it tells when the kubelet accepts plugins
		t.Fatal(err)
	}
	startKind(t, testbed.Kubelet)
	eventually(t, "the kubelet accepts device plugins", func() (string, bool) {
		_, err := os.Lstat(registration)
		return fmt.Sprint(err), err == nil
	})
	d := &devicePlugin{config: fake.Config{
		Root:     node().RootDir,
		Resource: fakeResource,
		Devices:  []string{"d1", "d2", "d3", "d4"},
		Mount:    t.TempDir(),
	}}
	d.start(t)
	t.Cleanup(func() { d.close() })

	apply(t, `{apiVersion: v1, kind: Service, metadata: {name: shared},
		spec: {selector: {app: shared}, ports: [{port: 80}]}}`)
	apply(t, cpuPod("shared", ""))
	waitReady(t, "shared")
	eventually(t, "the Service has an endpoint", func() (string, bool) {
		got := kubectl(t, "get", "endpointslices", "-l=kubernetes.io/service-name=shared",
			"-o=jsonpath={..conditions.ready}")
		return got, got == "true"
	})
	all := cpusOf(t, "shared")
	apply(t, cpuPod("alone", "1"))
	waitReady(t, "alone")
	alone := cpusOf(t, "alone")
	if alone == all || strings.ContainsAny(alone, "-,") {
		t.Fatalf("the kubelet gave the container CPUs %s of %s, want one", alone, all)
	}
	waitCPUs(t, "shared", "0")
	before := assigned(t)
	device := before[strings.LastIndexByte(before, ' ')+1:] // the kubelet chooses any
	if want := "alone/app CPUs [" + alone + "] memory 33554432 on 0 device " + device; before != want ||
		!slices.Contains(d.config.Devices, device) {
		t.Errorf("resources by the kubelet: got %s, want %s with one device", before, want)
	}
	history := map[string]string{"alone": alone, "shared": strings.Join([]string{all, "0"}, " ")}

	for i, kind := range []testbed.AgentKind{testbed.Nodelet, testbed.Kubelet, testbed.Nodelet} {
		watched := beginWitness(t)
		switchAgent(t, kind, fmt.Sprint("marker-", i))
		watched.check(t, fmt.Sprintf("during the switch to %s", kind))
		d.followAgent(t)
		for pod, want := range history {
			if got := strings.Join(strings.Fields(kubectl(t, "logs", pod)), " "); got != want {
				t.Errorf("after the switch to %s: the process of pod %s has seen the CPUs %s, want %s", kind, pod, got, want)
			}
		}
		if got := assigned(t); got != before {
			t.Errorf("after the switch to %s: resources: got %s, want %s", kind, got, before)
		}
	}

	// From here on, nodelet runs. No CPU is left for a second pod before the first one has gone.
	kubectl(t, "delete", "pod", "alone", "--timeout=5m")
	waitCPUs(t, "shared", all)
	apply(t, cpuPod("next", "1"))
	waitReady(t, "next")
	if got := cpusOf(t, "next"); got != alone {
		t.Errorf("the next container has CPUs %s, want %s", got, alone)
	}
	waitCPUs(t, "shared", "0")
	quota := kubectl(t, "exec", "next", "--", "sh", "-c", // the file of cgroup v2, or that of v1
		"cat /sys/fs/cgroup/cpu.max 2>/dev/null || cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us")
	if quota != "-1" && !strings.HasPrefix(quota, "max ") {
		t.Errorf("the container has the CPU quota %q, want none", quota)
	}
	kubectl(t, "delete", "pod", "next", "shared", "--timeout=5m")
}

// holdMemory keeps the size of the NUMA nodes as it is, until the test ends. That of some virtual machines changes, and
// then either agent refuses the state that was recorded before.
func holdMemory(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob("/sys/devices/system/node/node*/meminfo")
	if err != nil || len(files) == 0 {
		t.Fatalf("find the memory of the NUMA nodes: got %q, %v, want one or more files", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		held := filepath.Join(t.TempDir(), "meminfo")
		write(t, held, string(text))
		bindMount(t, held, file)
	}
}

// bindMount mounts what is at the path from at another one too, until the test ends.
func bindMount(t *testing.T, from, to string) {
	t.Helper()
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(to, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// assigned lists the containers that have CPUs, memory or devices for themselves, as the pod resources API reports
// them.
func assigned(t *testing.T) string {
	t.Helper()
	var all []string
	for _, pod := range podResources(t) {
		for _, c := range pod.Containers {
			text := ""
			if len(c.CpuIds) > 0 {
				text += fmt.Sprintf(" CPUs %v", c.CpuIds)
			}
			for _, m := range c.Memory {
				text += fmt.Sprintf(" %s %d on", m.MemoryType, m.Size)
				for _, n := range m.Topology.Nodes {
					text += fmt.Sprintf(" %d", n.ID)
				}
			}
			for _, d := range c.Devices {
				text += " device " + strings.Join(d.DeviceIds, ",")
			}
			if text != "" {
				all = append(all, pod.Name+"/"+c.Name+text)
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
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

// cpuPod returns a pod that requests CPUs, with limits of the same size, and a device; nothing if cpus is empty. Its
// log has one line for each change of the CPUs that it may use.
func cpuPod(name, cpus string) string {
	resources := "{}"
	if cpus != "" {
		resources = fmt.Sprintf("{limits: {cpu: %q, memory: 32Mi, %s: 1}}", cpus, fakeResource)
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: %[1]s}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: %[2]s
    command: [sh, -c, 'while :; do
      now=$(grep Cpus_allowed_list /proc/self/status); now=${now##*[[:space:]]};
      [ "$now" = "$last" ] || echo "$now"; last=$now; sleep 0.1; done']
    resources: %[3]s
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
	eventually(t, fmt.Sprintf("pod %s uses CPUs %s", pod, want), func() (string, bool) {
		got := cpusOf(t, pod)
		return got, got == want
	})
}
