package placement

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/placement/state"
	"github.com/nodelet/nodelet/host/boundedfile"
)

const allocatedFile = "allocated_pods_state"

// AllocatedPods is the kubelet's file of what pods hold, in a root directory.
type AllocatedPods string

// Load reads the file. It has no entries if it does not exist.
func (root AllocatedPods) Load() (map[types.UID]state.PodResources, error) {
	content, err := boundedfile.Read(filepath.Join(string(root), allocatedFile), state.MaxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var entries map[types.UID]state.PodResources
	if err == nil {
		entries, err = state.UnmarshalPods(content)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", allocatedFile, err)
	}
	return entries, nil
}

// Save replaces the file.
func (root AllocatedPods) Save(entries map[types.UID]state.PodResources) error {
	content, err := state.MarshalPods(entries)
	return files{root: string(root)}.write(allocatedFile, content, err)
}
