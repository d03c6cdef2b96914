package usage

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// newGuestWorld returns a world whose pod has no cgroups of containers. The runtime knows what these use.
func newGuestWorld(t *testing.T) *world {
	t.Helper()
	value := func(v uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: v} }
	of := func(id string) *runtimeapi.ContainerStats {
		s := layerStats(id, 4096)
		s.Cpu = &runtimeapi.CpuUsage{Timestamp: 15e17, UsageCoreNanoSeconds: value(3e9)}
		s.Memory = &runtimeapi.MemoryUsage{WorkingSetBytes: value(5000), AvailableBytes: value(1000), UsageBytes: value(7000)}
		s.Swap = &runtimeapi.SwapUsage{SwapUsageBytes: value(8)}
		return s
	}
	w := newWorld(t, true)
	for _, id := range []string{sandboxID, appID, strayID} {
		if err := os.RemoveAll(filepath.Join(w.root, "cgroup/kubepods/pod1", id)); err != nil {
			t.Fatal(err)
		}
	}
	w.runtime.stats = []*runtimeapi.ContainerStats{of(endedID), of(appID)}
	return w
}

// TestGuests checks that containers without a cgroup, as those in a virtual machine, have the usage that the runtime
// reports, once the agent knows that they run. cAdvisor's families do not have them.
func TestGuests(t *testing.T) {
	w := newGuestWorld(t)
	row := func(family string) string { return family + `{container="app",namespace="default",pod="web"` }
	if text := w.text(w.WriteResource); strings.Contains(text, `container="app"`) {
		t.Errorf("no container runs: want none in:\n%s", text)
	}
	w.images = map[string]string{appID: "example.com/app:1"}
	wantLines(t, w.text(w.WriteResource),
		row("container_cpu_usage_seconds_total")+`} 3 1500000000000`,
		row("container_memory_working_set_bytes")+`} 5000 1500000000000`,
		row("container_swap_usage_bytes")+`} 8 1500000000000`,
		row("container_start_time_seconds")+`} 1000000000`)
	if text := w.text(w.WriteResource); !strings.Contains(text, `pod_memory_working_set_bytes{namespace="default"`) {
		t.Errorf("got no usage of the pod in:\n%s", text)
	}
	if text := w.text(w.WriteVolumes); !strings.Contains(text, row("kubelet_container_log_filesystem_used_bytes")) {
		t.Errorf("got no size of the logs in:\n%s", text)
	}
	if text := w.text(w.WriteCadvisor); strings.Contains(text, `container="app"`) {
		t.Errorf("/metrics/cadvisor: got a container without a cgroup in:\n%s", text)
	}
	s, err := w.Summary(t.Context(), Plain)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Pods[0].Containers) != 1 {
		t.Fatalf("got %+v, want one container", s.Pods[0].Containers)
	}
	if c := s.Pods[0].Containers[0]; c.Name != "app" || *c.CPU.UsageCoreNanoSeconds != 3e9 ||
		*c.Memory.AvailableBytes != 1000 || *c.Memory.UsageBytes != 7000 || *c.Rootfs.UsedBytes != 4096 {
		t.Errorf("got %+v, want the usage of app", c)
	}
	if s.Pods[0].Network != nil {
		t.Errorf("got the network %+v, want none: no process of the pod is known", s.Pods[0].Network)
	}
	w.runtime.err = errors.New("no answer")
	text := w.text(w.WriteResource)
	wantLines(t, text, "resource_scrape_error 1")
	if !strings.Contains(text, "\nnode_memory_working_set_bytes ") {
		t.Errorf("the runtime does not answer: want the node in:\n%s", text)
	}
}

// TestGuestThatHangs checks that a virtual machine that does not answer does not hide the usage of others.
func TestGuestThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newGuestWorld(t)
		w.images = map[string]string{appID: "example.com/app:1"}
		hung := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hung", UID: "hung"}}
		w.others = []Pod{{Pod: hung, Images: map[string]string{"hung": "example.com/app:1"}}}
		w.runtime.hangsFor = "hung"
		wantLines(t, w.text(w.WriteResource),
			`container_cpu_usage_seconds_total{container="app",namespace="default",pod="web"} 3 1500000000000`)
	})
}

// TestGuestWithoutMetrics checks that a container does not count as measured if the runtime has only its name, as that
// of a virtual machine that did not answer the runtime.
func TestGuestWithoutMetrics(t *testing.T) {
	w := newGuestWorld(t)
	w.images = map[string]string{appID: "example.com/app:1"}
	w.runtime.stats = appStats
	if text := w.text(w.WriteResource); strings.Contains(text, `container="app"`) {
		t.Errorf("got the container in:\n%s", text)
	}
}

// TestContainerMemory checks that the memory of a container is that of its cgroup, and not known of one that has ended
// or runs elsewhere: its cgroup has no processes, or there is none.
func TestContainerMemory(t *testing.T) {
	bothVersions(t, func(t *testing.T, w *world, _ bool) {
		h := w.cfg.Hierarchy
		if used, ok := h.ContainerMemory("/kubepods/pod1", appID); used != 1000000 || !ok {
			t.Errorf("got %d, %v, want 1000000", used, ok)
		}
		dir := "kubepods/pod1/" + appID
		tree(t, h.unified, map[string]string{
			"pids/" + dir + "/pids.current": "0\n", dir + "/cgroup.events": "populated 0\nfrozen 0\n",
		})
		for what, id := range map[string]string{"without processes": appID, "without a cgroup": endedID} {
			if used, ok := h.ContainerMemory("/kubepods/pod1", id); ok {
				t.Errorf("%s: got %d, want that it is not known", what, used)
			}
		}
	})
}
