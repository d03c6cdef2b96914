//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/nodelet/nodelet/test/testbed"
)

// TestLongCRIO runs pods of all kinds on CRI-O: first with its default settings, which send no events, then with
// enable_pod_events.
func TestLongCRIO(t *testing.T) {
	onTestbed(t, testbed.Options{Name: "crio", Runtime: "crio", AgentArgs: []string{"-v=4"}})
	t.Run("everything", TestEverything)
	t.Run("kubectl", TestLongKubectl)
	t.Run("bad pods", TestBadPods)
	t.Run("probes and hooks", TestProbesAndHooksRestart)
	t.Run("static pod", TestStaticPod)
	t.Run("user namespace", usernsOnCRIO)
	t.Run("image volume", imageVolumeOnCRIO)
	t.Run("usage", usageOnCRIO)
	t.Run("pull", pullOnCRIO)
	t.Run("resize", TestLongResize)
	t.Run("resize of CPU", TestLongResizeOfCPU)
	t.Run("restarts", restartsOnCRIO)
	t.Run("with events", func(t *testing.T) {
		sendEvents(t)
		restartsOnCRIO(t)
		t.Run("everything", TestEverything)
	})
}

// TestLongCRIOFaults checks that a restart of CRI-O without the agent, and a container that takes long to stop, harm no
// other pod.
func TestLongCRIOFaults(t *testing.T) {
	onTestbed(t, testbed.Options{Name: "criofault", Runtime: "crio", Network: "agent", AgentArgs: []string{"-v=4"}})
	t.Run("restart without the agent", restartWithoutAgentOnCRIO)
	t.Run("slow stop", slowStopOnCRIO)
}

// restartWithoutAgentOnCRIO restarts CRI-O while the agent that provides the pod network is away. CRI-O must know the
// addresses of the pods after that: the agent replaces a pod without one.
func restartWithoutAgentOnCRIO(t *testing.T) {
	clean(t)
	check := bystander(t)
	stopAgent(t, unix.SIGTERM)
	restartRuntime(t)
	startAgent(t)
	startTalker(t, "talker")
	check()
}

// slowStopOnCRIO checks that a pod is evicted that writes too much into its container's layer while another pod takes
// long to stop. Until that has ended, CRI-O gives no statistics.
func slowStopOnCRIO(t *testing.T) {
	clean(t)
	pod := func(name, command string) string {
		return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {nodeName: %s,
			terminationGracePeriodSeconds: 3600, containers: [{name: app, image: %q, command: [sh, -c, %q],
			resources: {limits: {ephemeral-storage: 10Mi}}}]}}`, name, node().Name, testbed.BusyboxImage, command)
	}
	apply(t, pod("slow", "trap '' TERM; while true; do sleep 1; done"))
	waitReady(t, "slow")
	kubectl(t, "delete", "pod", "slow", "--wait=false")
	waitEvent(t, "slow", "Killing", "Stopping container app")
	apply(t, pod("greedy", "dd if=/dev/zero of=/big bs=1M count=50; sleep 3600"))
	waitPod(t, "greedy", "is evicted", func(p *corev1.Pod) bool { return p.Status.Reason == "Evicted" })
	kubectl(t, "delete", "pod", "slow", "--grace-period=1", "--wait=false")
	waitGone(t, "slow")
}

// restartsOnCRIO runs the tests that depend on how the agent learns of an exit, and those that kill agent and runtime.
func restartsOnCRIO(t *testing.T) {
	t.Run("policies", TestRestartPolicy)
	t.Run("out of memory", TestOutOfMemory)
	t.Run("agent killed", TestAgentKilled)
	t.Run("runtime killed", TestRuntimeKilled)
	t.Run("runtime comes late", TestRuntimeComesLate)
}

func eventsFile() string { return filepath.Join(node().Runtime.CRIOConfDir(), "events.conf") }

// silentRuntime reports whether the runtime sends no events.
func silentRuntime() bool {
	_, err := os.Stat(eventsFile())
	return node().Runtime.Name == "cri-o" && errors.Is(err, fs.ErrNotExist)
}

// sendEvents restarts CRI-O with events enabled, and the agent so that it reads them.
func sendEvents(t *testing.T) {
	t.Helper()
	if err := os.MkdirAll(node().Runtime.CRIOConfDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(eventsFile(), []byte("[crio.runtime]\nenable_pod_events = true\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	restartRuntime(t)
	stopAgent(t, unix.SIGTERM)
	startAgent(t)
	if err := node().WaitReady(t.Context(), limit); err != nil {
		t.Fatal(err)
	}
}

// usernsOnCRIO checks a pod with a user namespace. CRI-O 1.35 with runc cannot mount an image volume in such a pod, so
// imageVolumeOnCRIO has a pod of its own.
func usernsOnCRIO(t *testing.T) {
	clean(t)
	apply(t, `{apiVersion: v1, kind: Pod, metadata: {name: mapped}, spec: {nodeName: `+node().Name+
		`, hostUsers: false, terminationGracePeriodSeconds: 0,
		containers: [{name: app, image: "`+testbed.BusyboxImage+
		`", command: [sh, -c, "touch /data/mine; sleep 3600"], volumeMounts: [{name: data, mountPath: /data}]}],
		volumes: [{name: data, emptyDir: {}}]}}`)
	waitReady(t, "mapped")
	fields := strings.Fields(inside(t, "mapped", "app", "cat", "/proc/self/uid_map"))
	if len(fields) != 3 || fields[0] != "0" || fields[1] == "0" || fields[2] != "65536" {
		t.Errorf("user ID map: got %q, want 65536 IDs from 0 that are not mapped to 0", fields)
	}
	expect(t, "mapped", "app", "id -u; stat -c %u:%g /data/mine /etc/hosts", "0\n0:0\n0:0")
}

func imageVolumeOnCRIO(t *testing.T) {
	clean(t)
	apply(t, `{apiVersion: v1, kind: Pod, metadata: {name: mounts}, spec: {nodeName: `+node().Name+
		`, terminationGracePeriodSeconds: 0,
		containers: [{name: app, image: "`+testbed.AgnhostImage+
		`", args: [pause], volumeMounts: [{name: image, mountPath: /image}, {name: image, mountPath: /bin2, subPath: bin}]}],
		volumes: [{name: image, image: {reference: "`+testbed.BusyboxImage+`", pullPolicy: IfNotPresent}}]}}`)
	waitReady(t, "mounts")
	expect(t, "mounts", "app", "ls /image/bin/busybox /bin2/busybox; touch /image/x 2>/dev/null || echo read-only",
		"/bin2/busybox\n/image/bin/busybox\nread-only")
}

// usageOnCRIO checks that nodelet finds the cgroups of containers on CRI-O, and does not report empty sandboxes or
// conmon processes as containers.
func usageOnCRIO(t *testing.T) {
	clean(t)
	startTalker(t, "talker")
	eventually(t, "the summary has the usage of the pod", func() (string, bool) {
		var all stats.Summary
		text := kubectl(t, "get", "--raw", "/api/v1/nodes/"+node().Name+"/proxy/stats/summary")
		if err := json.Unmarshal([]byte(text), &all); err != nil {
			t.Fatal(err)
		}
		return text, len(all.Pods) == 1 && hasUsage(t, all.Pods[0])
	})
	text := kubectl(t, "get", "--raw", "/api/v1/nodes/"+node().Name+"/proxy/metrics/cadvisor")
	for _, name := range []string{"app", "talk", "side"} {
		if want := fmt.Sprintf(`container_memory_working_set_bytes{container=%q`, name); strings.Count(text, want) != 1 {
			t.Errorf("/metrics/cadvisor: got %d lines %s…, want 1", strings.Count(text, want), want)
		}
	}
	if strings.Contains(text, "crio-conmon") {
		t.Error("/metrics/cadvisor: got a conmon process, want containers only")
	}
}

// hasUsage reports whether each running container of the pod has usage figures. A figure of a terminated container is
// an error.
func hasUsage(t *testing.T, pod stats.PodStats) bool {
	running := 0
	for _, c := range pod.Containers {
		if c.Name == "first" {
			t.Error("the summary: got a container that has terminated, want running containers only")
		}
		if c.CPU != nil && c.CPU.UsageCoreNanoSeconds != nil && *c.CPU.UsageCoreNanoSeconds > 0 && c.Memory != nil &&
			c.Memory.WorkingSetBytes != nil && *c.Memory.WorkingSetBytes > 0 && c.Rootfs != nil && c.Rootfs.UsedBytes != nil &&
			c.Logs != nil {
			running++
		}
	}
	return running == 4 && len(pod.Containers) == 4 && pod.Network != nil && pod.Network.RxBytes != nil &&
		*pod.Network.RxBytes > 0
}

// pullOnCRIO checks that a missing image is pulled, and that events report it.
func pullOnCRIO(t *testing.T) {
	clean(t)
	cache, err := testbed.OpenCache(os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	archives, err := cache.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, stop, err := tb.ServeImages(archives...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := node().Runtime.Crictl(t.Context(), "rmi", testbed.AgnhostImage); err != nil {
		t.Fatal(err)
	}
	apply(t, `{apiVersion: v1, kind: Pod, metadata: {name: pulled}, spec: {nodeName: `+node().Name+
		`, terminationGracePeriodSeconds: 0,
		containers: [{name: app, image: "`+testbed.AgnhostImage+`", args: [netexec]}]}}`)
	waitReady(t, "pulled")
	waitEvent(t, "pulled", "Pulling", `Pulling image "`+testbed.AgnhostImage+`"`)
	waitEvent(t, "pulled", "Pulled", `Successfully pulled image "`+testbed.AgnhostImage+`"`, "Image size: ")
}
