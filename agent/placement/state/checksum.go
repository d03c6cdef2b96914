package state

import (
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

// Checksum is the checksum of a value as text.
type Checksum uint64

// theirNames turns the names of Go types into those of the kubelet, which has them in other packages. Names of pods and
// containers cannot contain them.
var theirNames = strings.NewReplacer(
	"(state.Checksum)", "(checksum.Checksum)",
	"memory.NUMANode", "state.NUMANode",
	"memory.MemoryTable", "state.MemoryTable",
	"memory.Block", "state.Block",
	"memory.ContainerMemoryAssignments", "state.ContainerMemoryAssignments",
)

// checksumOf returns the checksum of a value as the kubelet computes it, over a text of the value.
func checksumOf(value any) Checksum {
	h := fnv.New32a()
	fmt.Fprint(h, theirNames.Replace(dump.ForHash(value)))
	return Checksum(h.Sum32())
}
