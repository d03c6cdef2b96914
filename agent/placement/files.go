package placement

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/nodelet/nodelet/agent/placement/policy"
	"github.com/nodelet/nodelet/agent/placement/state"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/host/atomicfile"
	"github.com/nodelet/nodelet/host/boundedfile"
)

// The kubelet's names of the files.
const (
	cpuFile    = "cpu_manager_state"
	memoryFile = "memory_manager_state"
)

// files are the state files of a node.
type files struct {
	root string
	// cpu and memory are the policies that write them.
	cpu, memory string
}

// load reads the files. A file that does not exist leaves its part of the state empty. A file of another policy is an
// error: containers may run on CPUs that the new policy knows nothing about.
func (f files) load() (s policy.State, err error) {
	if s.CPU, err = load(f, cpuFile, f.cpu, state.UnmarshalCPU); err != nil {
		return s, err
	}
	s.Memory, err = load(f, memoryFile, f.memory, state.UnmarshalMemory)
	return s, err
}

// load reads the file of a manager with a policy.
func load[S any](f files, name, policy string, parse func([]byte) (by string, s S, err error)) (s S, err error) {
	content, err := boundedfile.Read(filepath.Join(f.root, name), state.MaxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	by := ""
	if err == nil {
		by, s, err = parse(content)
	}
	if err == nil && by != policy {
		err = fmt.Errorf("configured policy %q differs from state checkpoint policy %q", policy, by)
	}
	if err != nil {
		return s, fmt.Errorf("could not restore state from checkpoint: %w, please drain this node and delete the "+
			"checkpoint file %q before restarting the node agent", err, filepath.Join(f.root, name))
	}
	return s, nil
}

// save writes the files of the policies that are static.
func (f files) save(s policy.State) error {
	if f.cpu == config.CPUPolicyStatic {
		content, err := state.MarshalCPU(f.cpu, s.CPU)
		if err := f.write(cpuFile, content, err); err != nil {
			return err
		}
	}
	if f.memory == config.MemoryPolicyStatic {
		content, err := state.MarshalMemory(f.memory, s.Memory)
		return f.write(memoryFile, content, err)
	}
	return nil
}

// write writes a file unless its content could not be made.
func (f files) write(name string, content []byte, err error) error {
	if err == nil {
		err = atomicfile.WriteSynced(filepath.Join(f.root, name), content, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
