package state

import (
	"encoding/json"
	"fmt"

	"github.com/nodelet/nodelet/agent/placement/memory"
)

// MemoryManagerCheckpoint are the fields for kubelets before 1.37.
type MemoryManagerCheckpoint struct {
	PolicyName   string                            `json:"policyName"`
	MachineState memory.NUMANodeMap                `json:"machineState"`
	Entries      memory.ContainerMemoryAssignments `json:"entries,omitempty"`
	Checksum     Checksum                          `json:"checksum,omitempty"`
}

// memoryData is what kubelet 1.37 reads. It has the same fields without their checksum, and more.
type memoryData struct {
	MemoryManagerCheckpoint
	PodEntries memoryAssignments `json:"podEntries,omitempty"`
}

// memoryPod is the memory of a pod that has it as a whole.
type memoryPod struct {
	MemoryBlocks []memory.Block `json:"memoryBlocks,omitempty"`
}

// memoryFile is the whole file.
type memoryFile struct {
	MemoryManagerCheckpoint
	// PodEntries are in the file of a kubelet 1.36 with the feature gate PodLevelResourceManagers.
	PodEntries memoryAssignments `json:"podEntries,omitempty"`
	sealed
}

// alphaMemory is what the checksum of such a file is over.
type alphaMemory struct {
	PolicyName   string
	MachineState memory.NUMANodeMap
	Entries      memory.ContainerMemoryAssignments
	PodEntries   memoryAssignments
	Checksum     Checksum
}

type memoryAssignments map[string]memoryPod

// MarshalMemory returns the content of the file memory_manager_state.
func MarshalMemory(policy string, s memory.State) ([]byte, error) {
	s = s.Clone() // without nil maps
	fields := MemoryManagerCheckpoint{PolicyName: policy, MachineState: s.Machine, Entries: s.Containers}
	data := memoryData{MemoryManagerCheckpoint: fields, PodEntries: make(memoryAssignments, len(s.Pods))}
	for uid, blocks := range s.Pods {
		data.PodEntries[uid] = memoryPod{blocks}
	}
	f := memoryFile{MemoryManagerCheckpoint: fields}
	if err := f.seal(data); err != nil {
		return nil, err
	}
	f.Checksum = checksumOf(&f.MemoryManagerCheckpoint)
	return json.Marshal(f)
}

// UnmarshalMemory reads the content of the file memory_manager_state and returns the policy that has written it. The
// error is ErrChecksum if the file is damaged.
func UnmarshalMemory(content []byte) (policy string, s memory.State, err error) {
	data, err := memoryDataOf(content)
	if err != nil {
		return "", s, err
	}
	s = memory.State{Machine: data.MachineState, Containers: data.Entries, Pods: map[string][]memory.Block{}}
	for uid, pod := range data.PodEntries {
		s.Pods[uid] = pod.MemoryBlocks
	}
	return data.PolicyName, s.Clone(), nil
}

// memoryDataOf returns the verified data of a file.
func memoryDataOf(content []byte) (data memoryData, err error) {
	var f memoryFile
	if err := json.Unmarshal(content, &f); err != nil {
		return data, fmt.Errorf("%w: %w", ErrChecksum, err)
	}
	if there, err := f.open(&data); there {
		return data, err
	}
	data.MemoryManagerCheckpoint, data.PodEntries = f.MemoryManagerCheckpoint, f.PodEntries
	if data.MachineState == nil {
		data.MachineState = memory.NUMANodeMap{}
	}
	if data.Entries == nil {
		data.Entries = memory.ContainerMemoryAssignments{}
	}
	if data.PodEntries == nil {
		data.PodEntries = memoryAssignments{}
	}
	err = verify(&data.MemoryManagerCheckpoint, &data.Checksum)
	if alpha := (alphaMemory{data.PolicyName, data.MachineState, data.Entries, data.PodEntries, 0}); err != nil &&
		checksumOf(&alpha) == f.Checksum {
		err = nil
	}
	return data, err
}
