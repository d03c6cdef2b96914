package fake

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	defaultSize = 32 << 20
	maxSize     = 1 << 40
)

// volume is what the driver keeps of a volume, in volumes/<id>.json.
type volume struct {
	ID, Name string
	Size     int64
}

// disks are the volumes in the state directory, their images and loop devices.
type disks struct {
	cfg Config
}

func (d *disks) path(parts ...string) string {
	return filepath.Join(append([]string{d.cfg.State}, parts...)...)
}

func (d *disks) image(id string) string { return d.path("volumes", id+".img") }

// load finds a volume.
func (d *disks) load(id string) (*volume, error) {
	if id == "" {
		return nil, status.Error(codes.InvalidArgument, "volume ID is missing")
	}
	text, err := os.ReadFile(d.path("volumes", filepath.Base(id)+".json"))
	if err != nil {
		return nil, status.Errorf(codes.NotFound, "there is no volume %s", id)
	}
	v := &volume{}
	return v, json.Unmarshal(text, v)
}

func (d *disks) save(v *volume) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(d.path("volumes", v.ID+".json"), text, 0o644)
}

func sizeOf(r *csipb.CapacityRange) (int64, error) {
	size := int64(defaultSize)
	if r.GetRequiredBytes() > 0 {
		size = r.GetRequiredBytes()
	}
	if limit := r.GetLimitBytes(); limit > 0 && size > limit {
		size = limit
	}
	if size < 0 || size > maxSize || r.GetLimitBytes() > 0 && r.GetLimitBytes() < r.GetRequiredBytes() {
		return 0, status.Error(codes.OutOfRange, "no volume can have this size")
	}
	return size, nil
}

// CreateVolume makes a volume; its name is its identity.
func (d *Driver) CreateVolume(_ context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
	if r.Name == "" || len(r.VolumeCapabilities) == 0 {
		return nil, status.Error(codes.InvalidArgument, "name or capabilities are missing")
	}
	size, err := sizeOf(r.CapacityRange)
	if err != nil {
		return nil, err
	}
	id := fmt.Sprintf("vol-%x", sha256.Sum256([]byte(r.Name)))[:20]
	v, err := d.load(id)
	switch {
	case err == nil && v.Size < r.CapacityRange.GetRequiredBytes(),
		err == nil && r.CapacityRange.GetLimitBytes() > 0 && v.Size > r.CapacityRange.GetLimitBytes():
		return nil, status.Errorf(codes.AlreadyExists, "volume %s exists with another size", r.Name)
	case err != nil:
		v = &volume{ID: id, Name: r.Name, Size: size}
		if err := d.makeVolume(v); err != nil {
			return nil, err
		}
	}
	return &csipb.CreateVolumeResponse{Volume: &csipb.Volume{
		VolumeId:           id,
		CapacityBytes:      v.Size,
		VolumeContext:      map[string]string{"name": r.Name},
		AccessibleTopology: []*csipb.Topology{{Segments: map[string]string{TopologyKey: d.cfg.NodeID}}},
	}}, nil
}

func (d *disks) makeVolume(v *volume) error {
	if !d.cfg.Loop {
		return errors.Join(os.MkdirAll(d.image(v.ID), 0o755), d.save(v))
	}
	f, err := os.OpenFile(d.image(v.ID), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(v.Size), f.Close(), d.save(v))
}

// DeleteVolume removes a volume; one that is not there is fine.
func (d *Driver) DeleteVolume(_ context.Context, r *csipb.DeleteVolumeRequest) (*csipb.DeleteVolumeResponse, error) {
	v, err := d.load(r.VolumeId)
	switch {
	case status.Code(err) == codes.NotFound:
		return &csipb.DeleteVolumeResponse{}, nil
	case err != nil:
		return nil, err
	}
	if _, err := os.Stat(d.path("attached", v.ID)); err == nil {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is attached", v.ID)
	}
	err = errors.Join(os.RemoveAll(d.image(v.ID)), os.Remove(d.path("volumes", v.ID+".json")))
	return &csipb.DeleteVolumeResponse{}, err
}

// ControllerPublishVolume attaches a volume to one node at a time.
func (d *Driver) ControllerPublishVolume(_ context.Context, r *csipb.ControllerPublishVolumeRequest) (
	*csipb.ControllerPublishVolumeResponse, error) {
	if r.VolumeId == "" || r.NodeId == "" || r.VolumeCapability == nil {
		return nil, status.Error(codes.InvalidArgument, "volume ID, node or capability are missing")
	}
	v, err := d.load(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if r.NodeId != d.cfg.NodeID {
		return nil, status.Errorf(codes.NotFound, "there is no node %s", r.NodeId)
	}
	if text, err := os.ReadFile(d.path("attached", v.ID)); err == nil && !strings.HasPrefix(string(text), r.NodeId+" ") {
		return nil, status.Errorf(codes.FailedPrecondition, "volume is attached to %s", text)
	} else if err == nil && string(text) != attachment(r) {
		return nil, status.Error(codes.AlreadyExists, "volume is attached in another way")
	}
	err = os.WriteFile(d.path("attached", v.ID), []byte(attachment(r)), 0o644)
	return &csipb.ControllerPublishVolumeResponse{PublishContext: map[string]string{"attached": v.ID}}, err
}

func attachment(r *csipb.ControllerPublishVolumeRequest) string {
	return fmt.Sprintf("%s %t", r.NodeId, r.Readonly)
}

// ControllerUnpublishVolume detaches a volume.
func (d *Driver) ControllerUnpublishVolume(_ context.Context, r *csipb.ControllerUnpublishVolumeRequest) (
	*csipb.ControllerUnpublishVolumeResponse, error) {
	if r.VolumeId == "" {
		return nil, status.Error(codes.InvalidArgument, "volume ID is missing")
	}
	if loop, err := d.loopOf(r.VolumeId); err == nil && mountedFrom(loop) {
		// A disk that is torn away under a file system is what a cluster must never do.
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is still in use as %s", r.VolumeId, loop)
	}
	if err := os.Remove(d.path("attached", filepath.Base(r.VolumeId))); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return &csipb.ControllerUnpublishVolumeResponse{}, nil
}

// ValidateVolumeCapabilities confirms what is asked for.
func (d *Driver) ValidateVolumeCapabilities(_ context.Context, r *csipb.ValidateVolumeCapabilitiesRequest) (
	*csipb.ValidateVolumeCapabilitiesResponse, error) {
	if r.VolumeId == "" || len(r.VolumeCapabilities) == 0 {
		return nil, status.Error(codes.InvalidArgument, "volume ID or capabilities are missing")
	}
	if _, err := d.load(r.VolumeId); err != nil {
		return nil, err
	}
	return &csipb.ValidateVolumeCapabilitiesResponse{Confirmed: &csipb.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.VolumeContext, VolumeCapabilities: r.VolumeCapabilities, Parameters: r.Parameters}}, nil
}

// ControllerExpandVolume makes a volume larger; its file system follows on the node.
func (d *Driver) ControllerExpandVolume(_ context.Context, r *csipb.ControllerExpandVolumeRequest) (
	*csipb.ControllerExpandVolumeResponse, error) {
	if r.VolumeId == "" || r.CapacityRange == nil {
		return nil, status.Error(codes.InvalidArgument, "volume ID or capacity are missing")
	}
	v, err := d.load(r.VolumeId)
	if err != nil {
		return nil, err
	}
	size, err := sizeOf(r.CapacityRange)
	if err != nil {
		return nil, err
	}
	if size > v.Size {
		v.Size = size
		if err := d.makeVolume(v); err != nil {
			return nil, err
		}
	}
	return &csipb.ControllerExpandVolumeResponse{CapacityBytes: v.Size, NodeExpansionRequired: true}, nil
}

// ControllerGetCapabilities says what the controller does.
func (d *Driver) ControllerGetCapabilities(context.Context, *csipb.ControllerGetCapabilitiesRequest) (
	*csipb.ControllerGetCapabilitiesResponse, error) {
	r := &csipb.ControllerGetCapabilitiesResponse{}
	for _, t := range []csipb.ControllerServiceCapability_RPC_Type{
		csipb.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csipb.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csipb.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csipb.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		rpc := &csipb.ControllerServiceCapability_Rpc{Rpc: &csipb.ControllerServiceCapability_RPC{Type: t}}
		r.Capabilities = append(r.Capabilities, &csipb.ControllerServiceCapability{Type: rpc})
	}
	return r, nil
}
