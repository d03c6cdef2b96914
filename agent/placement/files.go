package placement

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/nodelet/nodelet/agent/placement/policy"
	"github.com/nodelet/nodelet/agent/placement/state"
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
	by := ""
	if content, ok, err := f.read(cpuFile); err != nil {
		return s, f.advise(cpuFile, err)
	} else if ok {
		if by, s.CPU, err = state.UnmarshalCPU(content); err == nil && by != f.cpu {
			err = fmt.Errorf("configured policy %q differs from state checkpoint policy %q", f.cpu, by)
		}
		if err != nil {
			return s, f.advise(cpuFile, err)
		}
	}
	if content, ok, err := f.read(memoryFile); err != nil {
		return s, f.advise(memoryFile, err)
	} else if ok {
		if by, s.Memory, err = state.UnmarshalMemory(content); err == nil && by != f.memory {
			err = fmt.Errorf("configured policy %q differs from state checkpoint policy %q", f.memory, by)
		}
		if err != nil {
			return s, f.advise(memoryFile, err)
		}
	}
	return s, nil
}

// read reads a file, and reports whether it exists.
func (f files) read(name string) ([]byte, bool, error) {
	content, err := boundedfile.Read(filepath.Join(f.root, name), state.MaxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	return content, err == nil, err
}

// advise says what to do about a file that cannot be used.
func (f files) advise(name string, err error) error {
	return fmt.Errorf("could not restore state from checkpoint: %w, please drain this node and delete the checkpoint "+
		"file %q before restarting the node agent", err, filepath.Join(f.root, name))
}

// save writes the files of the policies that are static.
func (f files) save(s policy.State) error {
	if f.cpu == policyStatic {
		content, err := state.MarshalCPU(f.cpu, s.CPU)
		if err == nil {
			err = atomicfile.WriteSynced(filepath.Join(f.root, cpuFile), content, 0o600)
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", cpuFile, err)
		}
	}
	if f.memory == policyMemoryStatic {
		content, err := state.MarshalMemory(f.memory, s.Memory)
		if err == nil {
			err = atomicfile.WriteSynced(filepath.Join(f.root, memoryFile), content, 0o600)
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", memoryFile, err)
		}
	}
	return nil
}

// checkOff returns an error if an agent with other policies than none has left state files below root.
func checkOff(root string) error {
	_, err := files{root: root, cpu: policyNone, memory: policyMemoryNone}.load()
	return err
}
