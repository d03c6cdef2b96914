package podfs

import (
	"context"

	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/volumes/block"
)

// Grow grows the file system of a local device, which is mounted for the pod, to the size of the device. It does
// nothing for a directory and for a block volume, which have no file system of their own.
func (v *FS) Grow(ctx context.Context, p Persistent) error {
	s := p.PV.Spec.Local
	if s == nil || p.Block {
		return nil
	}
	if isDevice, err := isDevice(ctx, s.Path); err != nil || !isDevice {
		return err
	}
	device, err := block.Open(ctx, s.Path)
	if err != nil {
		return err
	}
	defer device.Close()
	return device.Grow(ctx, v.hostPath(p.Pod.UID, OnDisk{pluginname.Local, p.PV.Name}))
}
