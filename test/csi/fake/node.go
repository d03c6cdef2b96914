package fake

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// NodeStageVolume puts the volume's device, or its file system, at the staging path.
func (d *Driver) NodeStageVolume(_ context.Context, r *csipb.NodeStageVolumeRequest) (
	*csipb.NodeStageVolumeResponse, error) {
	if r.VolumeId == "" || r.StagingTargetPath == "" || r.VolumeCapability == nil {
		return nil, status.Error(codes.InvalidArgument, "volume ID, staging path or capability are missing")
	}
	v, err := d.load(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if err := unmountBroken(r.StagingTargetPath); err != nil {
		return nil, err
	}
	if err := needDirectory(r.StagingTargetPath); err != nil {
		return nil, err
	}
	if r.VolumeCapability.GetBlock() != nil {
		_, err := d.attachLoop(v.ID)
		return &csipb.NodeStageVolumeResponse{}, err
	}
	return &csipb.NodeStageVolumeResponse{}, d.mountVolume(v, r.StagingTargetPath, r.VolumeCapability.GetMount())
}

// needDirectory refuses a staging path that the agent has not made; other than a target, it is not made by drivers.
func needDirectory(staging string) error {
	if info, err := os.Stat(staging); err != nil || !info.IsDir() {
		return status.Errorf(codes.FailedPrecondition, "staging path %s is no directory: %v", staging, err)
	}
	return nil
}

// makeTarget makes the directory of a target, below a parent that the agent has made.
func makeTarget(path string) error {
	if err := os.Mkdir(path, 0o755); !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// mountVolume mounts a volume's own file system, unless it is mounted there.
func (d *Driver) mountVolume(v *volume, target string, m *csipb.VolumeCapability_MountVolume) error {
	if mounted(target) {
		return nil
	}
	if !d.cfg.Loop {
		return bind(d.image(v.ID), target, false)
	}
	loop, err := d.attachLoop(v.ID)
	if err != nil {
		return err
	}
	if err := d.growLater(v.ID, loop); err != nil {
		return err
	}
	if err := mountFS(loop, target, m.GetFsType(), m.GetMountFlags()); err != nil {
		return err
	}
	return d.setGroup(target, m)
}

// NodeUnstageVolume takes away what NodeStageVolume has put there.
func (d *Driver) NodeUnstageVolume(_ context.Context, r *csipb.NodeUnstageVolumeRequest) (
	*csipb.NodeUnstageVolumeResponse, error) {
	if r.VolumeId == "" || r.StagingTargetPath == "" {
		return nil, status.Error(codes.InvalidArgument, "volume ID or staging path are missing")
	}
	return &csipb.NodeUnstageVolumeResponse{}, errors.Join(unmount(r.StagingTargetPath), d.detachLoop(r.VolumeId))
}

// NodePublishVolume shows a staged volume at the target, or makes an inline one there.
func (d *Driver) NodePublishVolume(_ context.Context, r *csipb.NodePublishVolumeRequest) (
	*csipb.NodePublishVolumeResponse, error) {
	if r.VolumeId == "" || r.TargetPath == "" || r.VolumeCapability == nil {
		return nil, status.Error(codes.InvalidArgument, "volume ID, target path or capability are missing")
	}
	if r.VolumeContext["csi.storage.k8s.io/ephemeral"] == "true" {
		return &csipb.NodePublishVolumeResponse{}, d.publishInline(r)
	}
	v, err := d.load(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(unmountBroken(r.TargetPath), d.notePublished(v, r)); err != nil {
		return nil, err
	}
	if !d.cfg.NoStage {
		if err := needDirectory(r.StagingTargetPath); err != nil {
			return nil, err
		}
	}
	if r.VolumeCapability.GetBlock() != nil {
		return &csipb.NodePublishVolumeResponse{}, d.publishBlock(v, r)
	}
	return &csipb.NodePublishVolumeResponse{}, d.publishMount(v, r)
}

func (d *Driver) publishMount(v *volume, r *csipb.NodePublishVolumeRequest) error {
	switch {
	case !d.cfg.NoStage && !mounted(r.StagingTargetPath):
		return status.Error(codes.FailedPrecondition, "volume is not staged")
	case mounted(r.TargetPath):
		return nil
	}
	if err := makeTarget(r.TargetPath); err != nil {
		return err
	}
	if d.cfg.NoStage {
		return d.mountVolume(v, r.TargetPath, r.VolumeCapability.GetMount())
	}
	return bind(r.StagingTargetPath, r.TargetPath, r.Readonly)
}

// notePublished remembers a target, and keeps a second one from a volume for a single writer.
func (d *Driver) notePublished(v *volume, r *csipb.NodePublishVolumeRequest) error {
	dir := d.path("published", v.ID)
	targets, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	single := r.VolumeCapability.GetAccessMode().GetMode() == csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	for _, t := range targets {
		other, err := os.ReadFile(filepath.Join(dir, t.Name()))
		if err == nil && single && string(other) != r.TargetPath && mounted(string(other)) {
			return status.Errorf(codes.FailedPrecondition, "volume %s has its single writer at %s", v.ID, other)
		}
	}
	return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(d.published(v.ID, r.TargetPath), []byte(r.TargetPath), 0o644))
}

// published is the note on a volume at a target.
func (d *Driver) published(id, target string) string {
	return d.path("published", filepath.Base(id), fmt.Sprintf("%x", sha256.Sum256([]byte(target))))
}

func (d *Driver) publishBlock(v *volume, r *csipb.NodePublishVolumeRequest) error {
	if mounted(r.TargetPath) {
		return nil
	}
	loop, err := d.attachLoop(v.ID)
	if err != nil {
		return err
	}
	if d.cfg.Links {
		return errors.Join(os.RemoveAll(r.TargetPath), os.Symlink(loop, r.TargetPath))
	}
	f, err := os.OpenFile(r.TargetPath, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), bind(loop, r.TargetPath, false))
}

// publishInline mounts a tmpfs, in which context.json holds the volume context of the request.
func (d *Driver) publishInline(r *csipb.NodePublishVolumeRequest) error {
	if !mounted(r.TargetPath) {
		if err := makeTarget(r.TargetPath); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", r.TargetPath, "tmpfs", 0, "size=1m"); err != nil {
			return err
		}
	}
	text, err := json.Marshal(r.VolumeContext)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(r.TargetPath, "context.json"), text, 0o644),
		os.WriteFile(d.path("ephemeral", filepath.Base(r.VolumeId)), text, 0o644))
}

// NodeUnpublishVolume takes a target away.
func (d *Driver) NodeUnpublishVolume(_ context.Context, r *csipb.NodeUnpublishVolumeRequest) (
	*csipb.NodeUnpublishVolumeResponse, error) {
	if r.VolumeId == "" || r.TargetPath == "" {
		return nil, status.Error(codes.InvalidArgument, "volume ID or target path are missing")
	}
	err := unmount(r.TargetPath)
	if err == nil {
		err = os.Remove(r.TargetPath)
	}
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err == nil && d.cfg.NoStage {
		err = d.detachLoop(r.VolumeId)
	}
	_ = os.Remove(d.path("ephemeral", filepath.Base(r.VolumeId)))
	_ = os.Remove(d.published(r.VolumeId, r.TargetPath))
	return &csipb.NodeUnpublishVolumeResponse{}, err
}

// NodeExpandVolume lets device and file system have the size that the controller gave the image.
func (d *Driver) NodeExpandVolume(_ context.Context, r *csipb.NodeExpandVolumeRequest) (
	*csipb.NodeExpandVolumeResponse, error) {
	if r.VolumeId == "" || r.VolumePath == "" {
		return nil, status.Error(codes.InvalidArgument, "volume ID or path are missing")
	}
	v, err := d.load(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(r.VolumePath); err != nil {
		return nil, status.Errorf(codes.NotFound, "there is nothing at %s", r.VolumePath)
	}
	if d.cfg.Loop {
		err = d.grow(v.ID, r.VolumeCapability.GetBlock() == nil)
	}
	return &csipb.NodeExpandVolumeResponse{CapacityBytes: v.Size}, err
}

// NodeGetVolumeStats gives the figures of a published volume.
func (d *Driver) NodeGetVolumeStats(_ context.Context, r *csipb.NodeGetVolumeStatsRequest) (
	*csipb.NodeGetVolumeStatsResponse, error) {
	if r.VolumeId == "" || r.VolumePath == "" {
		return nil, status.Error(codes.InvalidArgument, "volume ID or path are missing")
	}
	v, err := d.load(r.VolumeId)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(r.VolumePath)
	if err != nil {
		return nil, status.Errorf(codes.NotFound, "there is nothing at %s", r.VolumePath)
	}
	if !info.IsDir() {
		return d.withCondition(v, &csipb.NodeGetVolumeStatsResponse{
			Usage: []*csipb.VolumeUsage{{Unit: csipb.VolumeUsage_BYTES, Total: v.Size}}}), nil
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(r.VolumePath, &fs); err != nil {
		return nil, err
	}
	block := int64(fs.Bsize)
	return d.withCondition(v, &csipb.NodeGetVolumeStatsResponse{Usage: []*csipb.VolumeUsage{
		{
			Unit:      csipb.VolumeUsage_BYTES,
			Total:     int64(fs.Blocks) * block,
			Available: int64(fs.Bavail) * block,
			Used:      int64(fs.Blocks-fs.Bfree) * block,
		},
		{
			Unit:      csipb.VolumeUsage_INODES,
			Total:     int64(fs.Files),
			Available: int64(fs.Ffree),
			Used:      int64(fs.Files - fs.Ffree),
		},
	}}), nil
}

// Sicken has a driver with Condition or Health say that a volume is not well; an empty message heals it.
func Sicken(state, id, message string) error {
	return os.WriteFile(filepath.Join(state, "sick", id), []byte(message), 0o644)
}

// sickness is what a volume suffers from, empty for nothing.
func (d *Driver) sickness(v *volume) string {
	text, err := os.ReadFile(d.path("sick", v.ID))
	if err != nil {
		return ""
	}
	return string(text)
}

// What the specification had until 1.13 for the condition of volumes, and has no words for since.
const (
	volumeCondition      csipb.NodeServiceCapability_RPC_Type = 4
	volumeConditionField protowire.Number                     = 2
)

// withCondition adds the condition of a volume to its figures.
func (d *Driver) withCondition(v *volume, r *csipb.NodeGetVolumeStatsResponse) *csipb.NodeGetVolumeStatsResponse {
	if !d.cfg.Condition {
		return r
	}
	text := d.sickness(v)
	var c []byte
	if text != "" {
		c = protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)
	}
	c = protowire.AppendString(protowire.AppendTag(c, 2, protowire.BytesType), cmp.Or(text, "as good as new"))
	tag := protowire.AppendTag(nil, volumeConditionField, protowire.BytesType)
	r.ProtoReflect().SetUnknown(protowire.AppendBytes(tag, c))
	return r
}

// NodeGetVolumeHealth says what a volume suffers from.
func (d *Driver) NodeGetVolumeHealth(_ context.Context, r *csipb.NodeGetVolumeHealthRequest) (
	*csipb.NodeGetVolumeHealthResponse, error) {
	v, err := d.load(r.VolumeId)
	if err != nil {
		return nil, err
	}
	health := &csipb.VolumeHealth{VolumeId: v.ID}
	if text := d.sickness(v); text != "" {
		health.HealthStatuses = []*csipb.VolumeHealth_VolumeHealthEntry{{
			Status:  csipb.VolumeHealthErrorType_DEGRADED,
			Reason:  "Sick",
			Message: text,
		}}
	}
	return &csipb.NodeGetVolumeHealthResponse{VolumeHealth: health}, nil
}

// NodeGetCapabilities says what the node service does.
func (d *Driver) NodeGetCapabilities(context.Context, *csipb.NodeGetCapabilitiesRequest) (
	*csipb.NodeGetCapabilitiesResponse, error) {
	all := []csipb.NodeServiceCapability_RPC_Type{
		csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS, csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER}
	if !d.cfg.NoExpand {
		all = append(all, csipb.NodeServiceCapability_RPC_EXPAND_VOLUME)
	}
	if !d.cfg.NoStage {
		all = append(all, csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	}
	if d.cfg.MountGroup {
		all = append(all, csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
	}
	if d.cfg.Condition {
		all = append(all, volumeCondition)
	}
	if d.cfg.Health {
		all = append(all, csipb.NodeServiceCapability_RPC_GET_VOLUME_HEALTH)
	}
	r := &csipb.NodeGetCapabilitiesResponse{}
	for _, t := range all {
		r.Capabilities = append(r.Capabilities, &csipb.NodeServiceCapability{Type: &csipb.NodeServiceCapability_Rpc{
			Rpc: &csipb.NodeServiceCapability_RPC{Type: t}}})
	}
	return r, nil
}

// NodeGetInfo says how the driver calls the node.
func (d *Driver) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	d.asked.Add(1)
	return &csipb.NodeGetInfoResponse{NodeId: d.cfg.NodeID, MaxVolumesPerNode: d.maxVolumes.Load(),
		AccessibleTopology: &csipb.Topology{Segments: map[string]string{TopologyKey: d.cfg.NodeID}}}, nil
}
