package state

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PodResources is what a pod holds. When the kubelet starts, this replaces what the spec requests: containers that are
// missing keep what is in the spec, but a pod without PodLevelResources has none.
type PodResources struct {
	ContainerResources map[string]corev1.ResourceRequirements
	PodLevelResources  *corev1.ResourceRequirements
	// EmptyDirVolumeLimits belong to a feature gate of the kubelet. Whatever it has written stays.
	EmptyDirVolumeLimits json.RawMessage
}

// podsFile is the whole file.
type podsFile struct {
	Data     string   `json:"data"`
	Checksum Checksum `json:"checksum"`
}

// podsData is its data.
type podsData struct {
	Entries map[types.UID]PodResources `json:"entries,omitempty"`
}

// MarshalPods returns the content of the file allocated_pods_state.
func MarshalPods(entries map[types.UID]PodResources) ([]byte, error) {
	data, err := json.Marshal(podsData{entries})
	if err != nil {
		return nil, err
	}
	return json.Marshal(podsFile{string(data), checksumOf(string(data))})
}

// UnmarshalPods reads the content of the file allocated_pods_state. The error is ErrChecksum if the file is damaged.
func UnmarshalPods(content []byte) (map[types.UID]PodResources, error) {
	var f podsFile
	if err := json.Unmarshal(content, &f); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrChecksum, err)
	}
	if f.Checksum != checksumOf(f.Data) {
		return nil, ErrChecksum
	}
	var data podsData
	err := json.Unmarshal([]byte(f.Data), &data)
	return data.Entries, err
}
