package state

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"github.com/nodelet/nodelet/agent/placement/cpu"
	"github.com/nodelet/nodelet/host/topology"
)

// CPUManagerCheckpoint are the fields for kubelets before 1.37.
type CPUManagerCheckpoint struct {
	PolicyName    string                       `json:"policyName"`
	DefaultCPUSet string                       `json:"defaultCpuSet"`
	Entries       map[string]map[string]string `json:"entries,omitempty"`
	Checksum      Checksum                     `json:"checksum,omitempty"`
}

// cpuData is what kubelet 1.37 reads. It has the same fields without their checksum, and more.
type cpuData struct {
	CPUManagerCheckpoint
	PodEntries map[string]cpuPod                 `json:"podEntries,omitempty"`
	Baselines  map[string]map[string]cpuBaseline `json:"baselines,omitempty"`
}

// cpuPod are the CPUs of a pod that has them as a whole.
type cpuPod struct {
	CPUSet string `json:"cpuSet,omitempty"`
}

// cpuBaseline are the CPUs that a container had at its admission. The kubelet writes them if the feature gate
// InPlacePodVerticalScalingExclusiveCPUs is on, and takes the current ones if they are missing.
type cpuBaseline struct {
	Baseline string `json:"baseline"`
}

// cpuFile is the whole file.
type cpuFile struct {
	CPUManagerCheckpoint
	// PodEntries are in the file of a kubelet 1.36 with the feature gate PodLevelResourceManagers.
	PodEntries map[string]cpuPod `json:"podEntries,omitempty"`
	sealed
}

// alphaCPU is what the checksum of such a file is over.
type alphaCPU struct {
	PolicyName    string
	DefaultCPUSet string
	Entries       map[string]map[string]string
	PodEntries    cpuAssignments
	Checksum      Checksum
}

type cpuAssignments map[string]cpuEntry

type cpuEntry struct{ CPUSet cpuset.CPUSet }

// MarshalCPU returns the content of the file cpu_manager_state.
func MarshalCPU(policy string, s cpu.State) ([]byte, error) {
	entries := make(map[string]map[string]string, len(s.Containers))
	fields := CPUManagerCheckpoint{PolicyName: policy, DefaultCPUSet: s.Shared.String(), Entries: entries}
	data := cpuData{CPUManagerCheckpoint: fields, PodEntries: make(map[string]cpuPod, len(s.Pods))}
	for uid, of := range s.Containers {
		entries[string(uid)] = make(map[string]string, len(of))
		for name, set := range of {
			entries[string(uid)][name] = set.String()
		}
	}
	for uid, set := range s.Pods {
		data.PodEntries[string(uid)] = cpuPod{set.String()}
	}
	f := cpuFile{CPUManagerCheckpoint: fields}
	if err := f.seal(data); err != nil {
		return nil, err
	}
	f.Checksum = checksumOf(&f.CPUManagerCheckpoint)
	return json.Marshal(f)
}

// UnmarshalCPU reads the content of the file cpu_manager_state and returns the policy that has written it. The error is
// ErrChecksum if the file is damaged.
func UnmarshalCPU(content []byte) (policy string, s cpu.State, err error) {
	data, err := cpuDataOf(content)
	if err != nil {
		return "", s, err
	}
	parse := func(text, what string) (set cpuset.CPUSet) {
		if err == nil {
			if set, err = topology.ParseCPUs(text); err != nil {
				err = fmt.Errorf("could not parse %s: %w", what, err)
			}
		}
		return set
	}
	s = cpu.State{Shared: parse(data.DefaultCPUSet, "default CPU set")}.Clone()
	for uid, of := range data.Entries {
		s.Containers[types.UID(uid)] = make(map[string]cpuset.CPUSet, len(of))
		for name, text := range of {
			s.Containers[types.UID(uid)][name] = parse(text, fmt.Sprintf("cpuset for container %q in pod %q", name, uid))
		}
	}
	for uid, pod := range data.PodEntries {
		s.Pods[types.UID(uid)] = parse(pod.CPUSet, fmt.Sprintf("cpuset for pod %q", uid))
	}
	return data.PolicyName, s, err
}

// cpuDataOf returns the verified data of a file.
func cpuDataOf(content []byte) (data cpuData, err error) {
	var f cpuFile
	if err := json.Unmarshal(content, &f); err != nil {
		return data, fmt.Errorf("%w: %w", ErrChecksum, err)
	}
	if there, err := f.open(&data); there {
		return data, err
	}
	data.CPUManagerCheckpoint, data.PodEntries = f.CPUManagerCheckpoint, f.PodEntries
	if data.Entries == nil {
		data.Entries = map[string]map[string]string{}
	}
	err = verify(&data.CPUManagerCheckpoint, &data.Checksum)
	if err != nil && alphaCPUOf(data) == f.Checksum {
		err = nil
	}
	return data, err
}

// alphaCPUOf returns the checksum that a kubelet 1.36 with pods that have CPUs as a whole gives to data.
func alphaCPUOf(data cpuData) Checksum {
	fields := alphaCPU{data.PolicyName, data.DefaultCPUSet, data.Entries, cpuAssignments{}, 0}
	for uid, pod := range data.PodEntries {
		set, err := topology.ParseCPUs(pod.CPUSet)
		if err != nil {
			return 0
		}
		fields.PodEntries[uid] = cpuEntry{set}
	}
	return checksumOf(&fields)
}
