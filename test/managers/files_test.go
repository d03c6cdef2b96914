package managers

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	allocated "k8s.io/kubernetes/pkg/kubelet/allocation/state"
	cpustate "k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state"
	memorystate "k8s.io/kubernetes/pkg/kubelet/cm/memorymanager/state"
	"k8s.io/utils/cpuset"

	"github.com/nodelet/nodelet/agent/placement/cpu"
	"github.com/nodelet/nodelet/agent/placement/memory"
	"github.com/nodelet/nodelet/agent/placement/state"
)

// TestStateFiles checks that the kubelet reads what nodelet has written, and nodelet what the kubelet has written.
func TestStateFiles(t *testing.T) {
	dir, log := t.TempDir(), klog.Background()
	write := func(name string, content []byte, err error) {
		t.Helper()
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) []byte {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return content
	}

	cpus := cpu.State{Shared: cpuset.New(0, 1)}.Clone()
	cpus.Containers["uid"] = map[string]cpuset.CPUSet{"app": cpuset.New(2, 3)}
	content, err := state.MarshalCPU("static", cpus)
	write("cpu_manager_state", content, err)
	theirs, err := cpustate.NewCheckpointState(log, dir, "cpu_manager_state", "static", nil)
	if err != nil {
		t.Fatal(err)
	}
	shared := theirs.GetDefaultCPUSet()
	if got, own := theirs.GetCPUSet("uid", "app"); !own || got.String() != "2-3" || shared.String() != "0-1" {
		t.Errorf("the kubelet has read: got %s, %v, shared %s, want 2-3, true, shared 0-1", got, own, shared)
	}
	theirs.SetCPUSet("uid", "more", cpuset.New(7))
	policy, ours, err := state.UnmarshalCPU(read("cpu_manager_state"))
	if err != nil || policy != "static" || ours.Containers["uid"]["more"].String() != "7" {
		t.Errorf("nodelet has read: got %q, %v, %v, want static, CPU 7 for more", policy, ours, err)
	}

	bytes := memory.State{Machine: memory.NUMANodeMap{0: {
		NumberOfAssignments: 1,
		MemoryMap: map[corev1.ResourceName]*memory.MemoryTable{
			"memory": {TotalMemSize: 9, Allocatable: 9, Free: 6, Reserved: 3},
		},
		Cells: []int{0},
	}}}.Clone()
	bytes.Containers["uid"] = map[string][]memory.Block{"app": {{NUMAAffinity: []int{0}, Type: "memory", Size: 3}}}
	content, err = state.MarshalMemory("Static", bytes)
	write("memory_manager_state", content, err)
	mem, err := memorystate.NewCheckpointState(log, dir, "memory_manager_state", "Static")
	if err != nil {
		t.Fatal(err)
	}
	free := mem.GetMachineState()[0].MemoryMap["memory"].Free
	if got := mem.GetMemoryBlocks("uid", "app"); len(got) != 1 || got[0].Size != 3 || free != 6 {
		t.Errorf("the kubelet has read: got %v, %d bytes free, want one block of 3 bytes, 6 free", got, free)
	}
	mem.SetMemoryBlocks("uid", "more", []memorystate.Block{{NUMAAffinity: []int{0}, Type: "memory", Size: 2}})
	policy, oursBytes, err := state.UnmarshalMemory(read("memory_manager_state"))
	if err != nil || policy != "Static" || oursBytes.Containers["uid"]["more"][0].Size != 2 {
		t.Errorf("nodelet has read: got %q, %v, %v, want Static, 2 bytes for more", policy, oursBytes, err)
	}
}

// TestAllocatedPods checks the file of allocated resources in the same way.
func TestAllocatedPods(t *testing.T) {
	dir, log := t.TempDir(), klog.Background()
	path := filepath.Join(dir, "allocated_pods_state")
	of := func(cpu string) corev1.ResourceRequirements {
		list := corev1.ResourceList{"cpu": resource.MustParse(cpu), "ephemeral-storage": resource.MustParse("1Mi")}
		return corev1.ResourceRequirements{Requests: list, Limits: list}
	}
	whole := of("3")
	content, err := state.MarshalPods(map[types.UID]state.PodResources{"uid": {
		ContainerResources: map[string]corev1.ResourceRequirements{"app": of("1"), "first": of("2")},
		PodLevelResources:  &whole,
	}})
	if err == nil {
		err = os.WriteFile(path, content, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := allocated.NewStateCheckpoint(log, dir, "allocated_pods_state")
	if err != nil {
		t.Fatal(err)
	}
	got, there := theirs.GetPodResourceInfo("uid")
	want := allocated.PodResourceInfo{
		ContainerResources: map[string]corev1.ResourceRequirements{"app": of("1"), "first": of("2")},
		PodLevelResources:  &whole,
	}
	if !there || !apiequality.Semantic.DeepEqual(got, want) {
		t.Errorf("the kubelet has read: got %v, %v, want %v", got, there, want)
	}
	if err := theirs.SetPodResourceInfo(log, "other", want); err != nil {
		t.Fatal(err)
	}
	if content, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	ours, err := state.UnmarshalPods(content)
	if err != nil || len(ours) != 2 || !apiequality.Semantic.DeepEqual(ours["uid"].PodLevelResources, &whole) ||
		!apiequality.Semantic.DeepEqual(ours["other"].ContainerResources["app"], of("1")) {
		t.Errorf("nodelet has read: got %v, %v", ours, err)
	}
}

// TestFilesOfOldKubelets checks that kubelets before 1.37 read and verify only one half of the files.
func TestFilesOfOldKubelets(t *testing.T) {
	cpus := cpu.State{Shared: cpuset.New(0, 1)}.Clone()
	cpus.Containers["uid"] = map[string]cpuset.CPUSet{"app": cpuset.New(2, 3)}
	content, err := state.MarshalCPU("static", cpus)
	if err != nil {
		t.Fatal(err)
	}
	var old cpustate.CPUManagerCheckpointV2
	if err := old.UnmarshalCheckpoint(content); err != nil {
		t.Fatal(err)
	}
	if err := old.VerifyChecksum(); err != nil || old.Entries["uid"]["app"] != "2-3" {
		t.Errorf("CPUs: got %v, %v", old, err)
	}
	content, err = state.MarshalMemory("Static", memory.State{})
	if err != nil {
		t.Fatal(err)
	}
	oldMemory := memorystate.MemoryManagerCheckpointV1{Entries: memorystate.ContainerMemoryAssignments{}}
	if err := oldMemory.UnmarshalCheckpoint(content); err != nil {
		t.Fatal(err)
	}
	if err := oldMemory.VerifyChecksum(); err != nil || oldMemory.PolicyName != "Static" {
		t.Errorf("memory: got %v, %v", oldMemory, err)
	}
}
