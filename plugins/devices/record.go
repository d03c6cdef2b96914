package devices

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/nodelet/nodelet/host/atomicfile"
	"github.com/nodelet/nodelet/host/boundedfile"
	"github.com/nodelet/nodelet/plugins/devices/checkpoint"
)

// checkpointName is the kubelet's name of the file. What a write that was cut off leaves beside it is hidden, which the
// kubelet takes for no checkpoint.
const checkpointName = "kubelet_internal_checkpoint"

// allocation is what a container has of one resource.
type allocation struct {
	ids checkpoint.DevicesPerNUMA
	// answer is the plugin's; nil while it is asked, and where what was kept of it, unread, cannot be read, so that it has
	// to be asked again.
	answer *api.ContainerAllocateResponse
	unread []byte
}

// settled: a plugin has answered, in this life of the agent or an earlier one.
func (a *allocation) settled() bool { return a.answer != nil || a.unread != nil }

// all are the IDs of its devices, sorted.
func (a *allocation) all() []string {
	var ids []string
	for _, of := range a.ids {
		ids = append(ids, of...)
	}
	slices.Sort(ids)
	return slices.Compact(ids) // a device may be near to several NUMA nodes
}

// wire is the plugin's answer as it is kept.
func (a *allocation) wire() ([]byte, error) {
	if a.answer == nil {
		return a.unread, nil
	}
	return proto.Marshal(a.answer)
}

// load reads the checkpoint. Trouble with it is logged, and what can be read of it counts.
func (d *Devices) load() error {
	text, err := boundedfile.Read(filepath.Join(d.dir, checkpointName), checkpoint.MaxSize)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read which devices are given out: %w", err)
	}
	entries, registered, err := checkpoint.Unmarshal(text)
	if err != nil {
		d.log.Error("not all that was kept of the devices given out can be read; a device may be given out twice until the pods "+
			"that have devices are made anew", "file", filepath.Join(d.dir, checkpointName), "err", err)
	}
	for _, e := range entries {
		a := &allocation{ids: e.DeviceIDs, answer: &api.ContainerAllocateResponse{}}
		if err := proto.Unmarshal(e.AllocResp, a.answer); err != nil {
			d.log.Warn("a device plugin's answer cannot be read; it is asked again when the container starts anew",
				"pod", e.PodUID, "container", e.ContainerName, "resource", e.ResourceName, "err", err)
			a.answer, a.unread = nil, e.AllocResp
		}
		d.note(types.UID(e.PodUID), e.ContainerName, e.ResourceName, a)
	}
	for name, ids := range registered {
		r := &resource{devices: map[string]device{}}
		for _, id := range ids {
			r.devices[id] = device{}
		}
		d.resources[name] = r
	}
	return nil
}

// insert notes what a container has of a resource, if the pod is not gone. mu is held.
func (d *Devices) insert(r *reservation, container, resource string, a *allocation) error {
	if d.reserved[r.pod.UID] != r {
		return errTakenBack
	}
	d.note(r.pod.UID, container, resource, a)
	return nil
}

func (d *Devices) note(pod types.UID, container, resource string, a *allocation) {
	if d.given[pod] == nil {
		d.given[pod] = containers{}
	}
	if d.given[pod][container] == nil {
		d.given[pod][container] = map[string]*allocation{}
	}
	d.given[pod][container][resource] = a
}

// keep writes the checkpoint where nobody waits for it.
func (d *Devices) keep() {
	if err := d.save(); err != nil {
		d.log.Warn("cannot keep which devices are given out", "err", err)
	}
}

// save writes the checkpoint, surely on the disk.
func (d *Devices) save() error {
	d.saving.Lock()
	defer d.saving.Unlock()
	text, err := d.marshal()
	if err == nil {
		err = os.MkdirAll(d.dir, dirMode)
	}
	if err == nil {
		err = atomicfile.WriteSynced(filepath.Join(d.dir, checkpointName), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("failed to write checkpoint file %q: %w", checkpointName, err)
	}
	return nil
}

func (d *Devices) marshal() ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	entries := []checkpoint.PodDevicesEntry{}
	for _, pod := range slices.Sorted(maps.Keys(d.given)) {
		for _, container := range slices.Sorted(maps.Keys(d.given[pod])) {
			of := d.given[pod][container]
			for _, name := range slices.Sorted(maps.Keys(of)) {
				if !of[name].settled() {
					continue // after a crash the pod is new once more
				}
				answer, err := of[name].wire()
				if err != nil {
					return nil, err
				}
				entries = append(entries, checkpoint.PodDevicesEntry{PodUID: string(pod), ContainerName: container, ResourceName: name,
					DeviceIDs: of[name].ids, AllocResp: answer})
			}
		}
	}
	registered := map[string][]string{}
	for name, r := range d.resources {
		registered[name] = slices.AppendSeq([]string{}, maps.Keys(r.devices))
		slices.Sort(registered[name])
	}
	return checkpoint.Marshal(entries, registered)
}
