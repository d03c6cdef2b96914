package state_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"github.com/nodelet/nodelet/agent/placement/cpu"
	"github.com/nodelet/nodelet/agent/placement/memory"
	"github.com/nodelet/nodelet/agent/placement/state"
)

// The checksums in these files are those of the kubelet.
const (
	oldCPU = `{"policyName":"static","defaultCpuSet":"7-9","entries":{"pod":{"container1":"4-6","container2":"1-3"}},
		"checksum":964019483}`
	newCPU = `{"policyName":"other","checksum":1234,
		"data":"{\"policyName\":\"none\",\"defaultCPUSet\":\"4-6\"}","dataChecksum":657950972}`
	oldMemory = `{"policyName":"static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"memory":{"total":2048,
		"systemReserved":512,"allocatable":1536,"reserved":512,"free":1024}},"cells":[]}},
		"entries":{"pod":{"container1":[{"numaAffinity":[0],"type":"memory","size":512}]}},"checksum":4215593881}`
	// Kubelet 1.36 with the feature gate PodLevelResourceManagers, with and without a pod that has them as a whole.
	alphaCPU  = `{"policyName":"static","defaultCpuSet":"0-1","entries":{"uid":{"app":"2-3"}},"checksum":3705186061}`
	alphaCPUs = `{"policyName":"static","defaultCpuSet":"0-1","entries":{"uid":{"app":"2-3"}},
		"podEntries":{"whole":{"cpuSet":"4-5"}},"checksum":3787979559}`
	alphaMemory = `{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{"memory":{"total":9,
		"systemReserved":0,"allocatable":9,"reserved":4,"free":5}},"cells":[0]}},"checksum":2449353328}`
	alphaMemories = `{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{"memory":{"total":9,
		"systemReserved":0,"allocatable":9,"reserved":4,"free":5}},"cells":[0]}},
		"podEntries":{"whole":{"memoryBlocks":[{"numaAffinity":[0],"type":"memory","size":4}]}},"checksum":843769110}`
)

func TestReadsTheKubeletsFiles(t *testing.T) {
	policy, s, err := state.UnmarshalCPU([]byte(oldCPU))
	has := s.Containers["pod"]
	if err != nil || policy != "static" || s.Shared.String() != "7-9" || has["container1"].String() != "4-6" ||
		has["container2"].String() != "1-3" {
		t.Errorf("CPUs of an old kubelet: got %q, %v, %v, want static", policy, s, err)
	}
	policy, s, err = state.UnmarshalCPU([]byte(newCPU))
	if err != nil || policy != "none" || s.Shared.String() != "4-6" {
		t.Errorf("CPUs of kubelet 1.37: got %q, %v, %v, want none", policy, s, err)
	}
	policy, m, err := state.UnmarshalMemory([]byte(oldMemory))
	if err != nil || policy != "static" || m.Machine[0].MemoryMap["memory"].Free != 1024 ||
		m.Containers["pod"]["container1"][0].Size != 512 {
		t.Errorf("memory of an old kubelet: got %q, %v, %v, want static", policy, m, err)
	}
}

// TestReadsTheFilesOfAnAlphaFeature checks that a node can be taken over from a kubelet 1.36 with that feature.
func TestReadsTheFilesOfAnAlphaFeature(t *testing.T) {
	for text, want := range map[string]string{alphaCPU: "", alphaCPUs: "4-5"} {
		policy, s, err := state.UnmarshalCPU([]byte(text))
		if whole := s.Pods["whole"]; err != nil || policy != "static" || s.Containers["uid"]["app"].String() != "2-3" ||
			whole.String() != want {
			t.Errorf("%s: got %q, %v, %v, want static, CPUs %q for the pod", text, policy, s, err, want)
		}
	}
	for text, want := range map[string]int{alphaMemory: 0, alphaMemories: 1} {
		policy, s, err := state.UnmarshalMemory([]byte(text))
		if err != nil || policy != "Static" || s.Machine[0].MemoryMap["memory"].Free != 5 || len(s.Pods["whole"]) != want {
			t.Errorf("%s: got %q, %v, %v, want Static, %d blocks for the pod", text, policy, s, err, want)
		}
	}
}

func TestRefusesDamage(t *testing.T) {
	for _, damaged := range []string{
		strings.Replace(oldCPU, "4-6", "4-5", 1),
		strings.Replace(newCPU, "4-6", "4-5", 1),
		strings.Replace(newCPU, `"data":`, `"other":`, 1),
		strings.Replace(alphaCPU, "2-3", "2-4", 1),
		strings.Replace(alphaCPUs, "4-5", "4-6", 1),
		strings.Replace(alphaCPUs, "4-5", "5-4", 1),
		`{"policyName":"static"`,
		``,
	} {
		if _, _, err := state.UnmarshalCPU([]byte(damaged)); !errors.Is(err, state.ErrChecksum) {
			t.Errorf("%s: got error %v, want %v", damaged, err, state.ErrChecksum)
		}
	}
	for _, damaged := range []string{
		strings.Replace(oldMemory, "1024", "1025", 1),
		strings.Replace(alphaMemories, `"size":4`, `"size":5`, 1),
	} {
		if _, _, err := state.UnmarshalMemory([]byte(damaged)); !errors.Is(err, state.ErrChecksum) {
			t.Errorf("%s: got error %v, want %v", damaged, err, state.ErrChecksum)
		}
	}
	tooMany := `{"policyName":"static","defaultCpuSet":"0-999999999999","checksum":0}`
	if _, _, err := state.UnmarshalCPU([]byte(tooMany)); err == nil {
		t.Errorf("%s: got no error", tooMany)
	}
}

func TestRoundTrip(t *testing.T) {
	cpus := cpu.State{Shared: cpuset.New(0, 1)}.Clone()
	cpus.Containers["uid"] = map[string]cpuset.CPUSet{"app": cpuset.New(2, 3)}
	cpus.Pods["whole"] = cpuset.New(4)
	text, err := state.MarshalCPU("static", cpus)
	if err != nil {
		t.Fatal(err)
	}
	policy, got, err := state.UnmarshalCPU(text)
	if diff := cmp.Diff(cpus, got, cmp.Comparer(cpuset.CPUSet.Equals)); err != nil || policy != "static" || diff != "" {
		t.Errorf("CPUs: got %q, %v, difference %s", policy, err, diff)
	}
	bytes := memory.State{
		Machine: memory.NUMANodeMap{0: {
			NumberOfAssignments: 1,
			MemoryMap:           map[corev1.ResourceName]*memory.MemoryTable{"memory": {TotalMemSize: 5, Free: 2, Reserved: 3}},
			Cells:               []int{0},
		}},
		Containers: memory.ContainerMemoryAssignments{"uid": {"app": {{NUMAAffinity: []int{0}, Type: "memory", Size: 3}}}},
	}.Clone()
	if text, err = state.MarshalMemory("Static", bytes); err != nil {
		t.Fatal(err)
	}
	policy, gotBytes, err := state.UnmarshalMemory(text)
	if diff := cmp.Diff(bytes, gotBytes); err != nil || policy != "Static" || diff != "" {
		t.Errorf("memory: got %q, %v, difference %s", policy, err, diff)
	}
}

func FuzzUnmarshal(f *testing.F) {
	for _, text := range []string{oldCPU, newCPU, oldMemory, alphaCPUs, alphaMemories,
		`{"checksum":0,"machineState":{"0":null}}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		if policy, s, err := state.UnmarshalCPU(content); err == nil {
			if _, err := state.MarshalCPU(policy, s); err != nil {
				t.Errorf("CPUs cannot be written again: %v", err)
			}
		}
		if policy, s, err := state.UnmarshalMemory(content); err == nil {
			if _, err := state.MarshalMemory(policy, s); err != nil {
				t.Errorf("memory cannot be written again: %v", err)
			}
		}
	})
}
