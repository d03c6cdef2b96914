package csi

import (
	"cmp"
	"context"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
)

// ExpandError is a driver's refusal to expand a volume.
type ExpandError struct {
	// InUse: not while the volume is in use. Never: not to this size.
	InUse, Never bool
	err          error
}

func (e *ExpandError) Error() string { return e.err.Error() }

func (e *ExpandError) Unwrap() error { return e.err }

// Size returns the size in bytes that a published volume has on this node: that of its last expansion. If it was not
// expanded, it has the size of the first call since it was staged; 0 is not known.
func (c *CSI) Size(v *Volume, size int64) (int64, error) {
	return c.records.setSize(v.key(), func(has int64) int64 { return cmp.Or(has, size) })
}

// Refuses reports whether the driver of a volume has refused to expand it to a size because it is in use. That is
// forgotten when no pod uses the volume any more.
func (c *CSI) Refuses(v *Volume, size int64) bool { return c.records.refuses(v.key(), size) }

// Expand has a driver grow a published volume to a size in bytes. After an error other than *ExpandError the volume may
// have grown or not.
func (c *CSI) Expand(ctx context.Context, pod types.UID, v *Volume, size int64, secrets map[string]string) error {
	unlock, err := c.uses.Lock(ctx, useID(pod, v.Name))
	if err != nil {
		return err
	}
	defer unlock()
	d, done, err := c.drivers.get(ctx, v.Driver, pod)
	if err != nil {
		return err
	}
	defer done()
	lock, err := c.calls.lock(ctx, v.key())
	if err != nil {
		return err
	}
	defer lock.release()
	rec := c.records.get(v.key())
	if rec == nil || rec.Uses[useID(pod, v.Name)] == nil {
		return fmt.Errorf("pod %s has no CSI volume %q", pod, v.Name)
	}
	r := &csipb.NodeExpandVolumeRequest{
		VolumeId:         v.Handle,
		VolumePath:       c.records.target(pod, v),
		CapacityRange:    &csipb.CapacityRange{RequiredBytes: size},
		VolumeCapability: d.capability(v, ""),
		Secrets:          secrets,
	}
	if rec.Stage != none && d.can(csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		r.StagingTargetPath = c.files.abs(rec.Staging)
	}
	if err = change(ctx, lock, d, "NodeExpandVolume", d.node.NodeExpandVolume, r); err == nil {
		_, err = c.records.setSize(v.key(), func(int64) int64 { return size })
		return err
	}
	if !final(err) {
		return err
	}
	e := &ExpandError{err: err}
	switch status.Code(err) {
	case codes.FailedPrecondition:
		e.InUse = true
		c.records.refuse(v.key(), size)
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
		e.Never = true
	}
	return e
}
