package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"

	"k8s.io/utils/dump"
)

// MaxSize bounds a file that is read: some ten thousand containers.
const MaxSize = 16 << 20

// ErrChecksum says that the content of a file is not what was written.
var ErrChecksum = errors.New("checkpoint is corrupted: its checksum does not match its content")

// Checksum is the checksum of a value as text. Its name goes into the checksum; see theirNames.
type Checksum uint64

// theirNames turns the names of Go types into those of the kubelet, which has them in other packages. Names of pods and
// containers cannot contain them.
var theirNames = strings.NewReplacer(
	"(state.Checksum)", "(checksum.Checksum)",
	"memory.NUMANode", "state.NUMANode",
	"memory.MemoryTable", "state.MemoryTable",
	"memory.Block", "state.Block",
	"memory.ContainerMemoryAssignments", "state.ContainerMemoryAssignments",
	"state.alphaCPU", "state.CPUManagerCheckpoint",
	"state.cpuAssignments", "state.PodCPUAssignments",
	"state.cpuEntry", "state.PodEntry",
	"state.alphaMemory", "state.MemoryManagerCheckpoint",
	"state.memoryAssignments", "state.PodMemoryAssignments",
	"state.memoryPod", "state.PodEntry",
)

// checksumOf returns the checksum of a value as the kubelet computes it, over a text of the value.
func checksumOf(value any) Checksum {
	h := fnv.New32a()
	fmt.Fprint(h, theirNames.Replace(dump.ForHash(value)))
	return Checksum(h.Sum32())
}

// sealed is the data for kubelet 1.37 as text, with its checksum.
type sealed struct {
	Data         string   `json:"data"`
	DataChecksum Checksum `json:"dataChecksum"`
}

func (s *sealed) seal(data any) error {
	text, err := json.Marshal(data)
	s.Data, s.DataChecksum = string(text), checksumOf(string(text))
	return err
}

// open reads the verified data, and reports whether the file has some: a kubelet before 1.37 writes none.
func (s *sealed) open(data any) (there bool, err error) {
	switch {
	case s.Data == "" && s.DataChecksum == 0:
		return false, nil
	case s.DataChecksum != checksumOf(s.Data):
		return true, ErrChecksum
	}
	return true, json.Unmarshal([]byte(s.Data), data)
}

// verify checks the fields for kubelets before 1.37, of which sum is one. Zero means that there is no checksum.
func verify(fields any, sum *Checksum) error {
	written := *sum
	if *sum = 0; written != 0 && written != checksumOf(fields) {
		return ErrChecksum
	}
	return nil
}
