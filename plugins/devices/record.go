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

// checkpointName is the kubelet's name of the file. An interrupted write leaves a hidden file, which the kubelet
// ignores.
const checkpointName = "kubelet_internal_checkpoint"

// allocation is the devices of one resource that a container has.
type allocation struct {
	ids checkpoint.DevicesPerNUMA
	// answer is the plugin's answer; nil while the plugin is called, and if the stored answer, unread, cannot be decoded:
	// then the plugin is called again.
	answer *api.ContainerAllocateResponse
	unread []byte
}

// settled reports whether a plugin has answered, in this process or an earlier one.
func (a *allocation) settled() bool { return a.answer != nil || a.unread != nil }

// all returns the IDs of the devices, sorted.
func (a *allocation) all() []string {
	var ids []string
	for _, of := range a.ids {
		ids = append(ids, of...)
	}
	slices.Sort(ids)
	return slices.Compact(ids) // a device may have several NUMA nodes
}

// wire returns the plugin's answer as it is stored.
func (a *allocation) wire() ([]byte, error) {
	if a.answer == nil {
		return a.unread, nil
	}
	return proto.Marshal(a.answer)
}

// load reads the checkpoint. Damage is logged, and what can be decoded counts.
func (d *Devices) load() error {
	text, err := boundedfile.Read(filepath.Join(d.dir, checkpointName), checkpoint.MaxSize)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the checkpoint of device allocations (move the file away to start without it): %w", err)
	}
	entries, registered, err := checkpoint.Unmarshal(text)
	if err != nil {
		d.log.Error("checkpoint of device allocations is damaged; a device may be allocated twice until the pods that have "+
			"devices are recreated", "file", filepath.Join(d.dir, checkpointName), "err", err)
	}
	for _, e := range entries {
		a := &allocation{ids: e.DeviceIDs, answer: &api.ContainerAllocateResponse{}}
		if err := proto.Unmarshal(e.AllocResp, a.answer); err != nil {
			d.log.Warn("cannot decode the stored answer of a device plugin, calling it again when the container restarts",
				"pod", e.PodUID, "container", e.ContainerName, "resource", e.ResourceName, "err", err)
			a.answer, a.unread = nil, e.AllocResp
		}
		d.given[slot{types.UID(e.PodUID), e.ContainerName, e.ResourceName}] = a
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

// keep writes the checkpoint for callers that cannot handle an error.
func (d *Devices) keep() {
	if err := d.save(); err != nil {
		d.log.Warn("cannot write the checkpoint of device allocations", "err", err)
	}
}

// save writes the checkpoint and syncs it to the disk.
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
		d.mu.Lock()
		d.unsaved = true
		d.mu.Unlock()
		return fmt.Errorf("failed to write checkpoint file %q: %w", checkpointName, err)
	}
	return nil
}

// marshal returns the state as save writes it: then nothing is unsaved.
func (d *Devices) marshal() ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unsaved = false
	entries := []checkpoint.PodDevicesEntry{}
	for _, s := range d.slots(func(slot) bool { return true }) {
		a := d.given[s]
		if !a.settled() {
			continue // after a crash the pod is admitted again
		}
		answer, err := a.wire()
		if err != nil {
			return nil, err
		}
		entries = append(entries, checkpoint.PodDevicesEntry{PodUID: string(s.pod), ContainerName: s.container,
			ResourceName: s.resource, DeviceIDs: a.ids, AllocResp: answer})
	}
	registered := map[string][]string{}
	for name, r := range d.resources {
		registered[name] = slices.AppendSeq([]string{}, maps.Keys(r.devices))
		slices.Sort(registered[name])
	}
	return checkpoint.Marshal(entries, registered)
}
