// Package checkpoint reads and writes the file in which the kubelet keeps which container has which devices, in the
// kubelet's form, so that a node can switch between the kubelet and this agent while pods have devices.
//
// The checksum of that file is over a text that holds the names of the Go types which the kubelet keeps its data in. So
// those here have the same names and fields, and this package has the name of theirs. It never looks at the disk:
// package devices, which alone calls it, does. A crash leaves nothing of it behind.
package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"

	"k8s.io/utils/dump"
)

// WithoutNUMA stands for the NUMA node of devices that have none.
const WithoutNUMA = -1

// MaxSize bounds a file that is read: some ten thousand containers with devices.
const MaxSize = 64 << 20

// DevicesPerNUMA are IDs of devices by NUMA node.
type DevicesPerNUMA map[int64][]string

// PodDevicesEntry is what one container has of one resource.
type PodDevicesEntry struct {
	PodUID        string
	ContainerName string
	ResourceName  string
	DeviceIDs     DevicesPerNUMA
	// AllocResp is the plugin's answer, a ContainerAllocateResponse on the wire.
	AllocResp []byte
}

// checkpointData is what the checksum is over.
type checkpointData struct {
	PodDeviceEntries []PodDevicesEntry
	// RegisteredDevices are the devices by resource. The kubelet writes the healthy ones, and reads the resources alone.
	RegisteredDevices map[string][]string
}

// file is the whole file.
type file struct {
	Data     checkpointData
	Checksum uint64
}

// Marshal returns the content of the file. Content that could not be read again is an error.
func Marshal(entries []PodDevicesEntry, registered map[string][]string) ([]byte, error) {
	f := file{Data: checkpointData{PodDeviceEntries: entries, RegisteredDevices: registered}}
	f.Checksum = checksum(f.Data)
	text, err := json.Marshal(f)
	if err == nil && len(text) > MaxSize {
		return nil, fmt.Errorf("the lists and answers of device plugins take %d bytes, more than %d", len(text), MaxSize)
	}
	return text, err
}

// ErrChecksum says that the content is not what was written. Unmarshal still returns the entries that it could read: it
// is better to treat a free device as allocated than an allocated device as free.
var ErrChecksum = errors.New("checksum does not match the content")

// Unmarshal reads the file's content. Entries that name no container or no resource are left out, with an error.
func Unmarshal(text []byte) (entries []PodDevicesEntry, registered map[string][]string, err error) {
	var f file
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&f); err != nil {
		return nil, nil, fmt.Errorf("decode the checkpoint: %w", err)
	}
	if f.Checksum != checksum(f.Data) {
		err = ErrChecksum
	}
	for _, e := range f.Data.PodDeviceEntries {
		if e.PodUID == "" || e.ContainerName == "" || e.ResourceName == "" {
			err = errors.Join(err, fmt.Errorf("an entry names no container: %q %q %q", e.PodUID, e.ContainerName,
				e.ResourceName))
			continue
		}
		entries = append(entries, e)
	}
	return entries, f.Data.RegisteredDevices, err
}

func checksum(data checkpointData) uint64 {
	h := fnv.New32a()
	fmt.Fprint(h, dump.ForHash(data))
	return uint64(h.Sum32())
}
