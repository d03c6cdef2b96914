package iscsi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodelet/nodelet/host/atomicfile"
	"github.com/nodelet/nodelet/host/mounts"
	"github.com/nodelet/nodelet/volumes/block"
)

// NodeStageVolume attaches a LUN to this node and mounts it, unless pods want the device itself.
func (d *Driver) NodeStageVolume(ctx context.Context, in *csipb.NodeStageVolumeRequest, _ ...grpc.CallOption) (
	*csipb.NodeStageVolumeResponse, error) {
	done, staging := &csipb.NodeStageVolumeResponse{}, in.StagingTargetPath
	l := &LUN{}
	err := json.Unmarshal([]byte(in.VolumeContext[attribute]), l)
	if err == nil {
		err = l.check()
	}
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	m := in.VolumeCapability.GetMount()
	if m != nil && mounts.At(staging) {
		return done, nil
	}
	device, err := d.attach(ctx, l, staging, in.Secrets)
	if err != nil || m == nil {
		return done, err
	}
	fs := block.FileSystem{Type: m.FsType, Options: m.MountFlags, ReadOnly: l.ReadOnly}
	return done, d.mount(ctx, l, device, staging, fs)
}

// mount mounts a LUN's device.
func (d *Driver) mount(ctx context.Context, l *LUN, path, target string, fs block.FileSystem) error {
	device, err := block.Open(ctx, path)
	if err != nil {
		return err
	}
	defer device.Close()
	if err := d.stillDevice(l, path); err != nil { // the open device keeps its name from now on
		return err
	}
	return device.Mount(ctx, target, fs)
}

// stillDevice returns an error if a path is no longer a device of the LUN: its session may have ended, and another disk
// may have its name.
func (d *Driver) stillDevice(l *LUN, path string) error {
	sessions, err := d.sessions(l)
	if err != nil {
		return err
	}
	for _, s := range sessions {
		name := s.block(l.Lun)
		if want := filepath.Base(path); name != "" && (name == want || d.multipath(name) == want) {
			return nil
		}
	}
	return fmt.Errorf("iscsi: %s is no longer LUN %s of %s: its session has ended", path, l.Lun, l.Iqn)
}

// attach logs in at the LUN's portals and returns its device. One portal that answers is enough.
func (d *Driver) attach(ctx context.Context, l *LUN, staging string, secrets map[string]string) (string, error) {
	bound, unlock, err := d.lockTarget(ctx, l)
	if err != nil {
		return "", err
	}
	defer unlock()
	sessions, err := d.recordedSessions(l, staging)
	if err != nil {
		return "", err
	}
	if err := l.save(staging); err != nil {
		return "", fmt.Errorf("iscsi: write the LUN's state file: %w", err)
	}
	if l.InitiatorName != "" && len(sessions) == 0 {
		if err := l.cloneIface(bound); err != nil {
			return "", err
		}
	}
	names := make([]string, len(l.Portals))
	errs := make([]error, len(l.Portals))
	var all sync.WaitGroup
	for i, portal := range l.Portals { // concurrently: one that does not answer takes minutes
		all.Go(func() { names[i], errs[i] = d.path(bound, l, portal, sessions[portal], secrets) })
	}
	all.Wait()
	return d.choose(ctx, l, names, errs) // not within bound: a portal may have used it up
}

// recordedSessions returns the existing sessions, and records the creator of each. Call it before saving the LUN's
// state file.
func (d *Driver) recordedSessions(l *LUN, staging string) (map[string]*session, error) {
	sessions, err := d.sessions(l)
	if err != nil {
		return nil, err
	}
	for _, portal := range l.Portals {
		if sessions[portal] == nil || d.creator(l, portal) != "" {
			continue
		}
		if err := d.setCreator(l, portal, d.guess(l, staging, portal)); err != nil {
			return nil, err
		}
	}
	return sessions, nil
}

// choose returns the device to use, given the one found at each portal or the error.
func (d *Driver) choose(ctx context.Context, l *LUN, names []string, errs []error) (string, error) {
	var found []string
	for i, name := range names {
		if errs[i] == nil {
			found = append(found, name)
		}
	}
	if len(found) == 0 {
		return "", errors.Join(errs...)
	}
	for i, err := range errs {
		if err != nil {
			d.cfg.Log.Warn("cannot use an iSCSI portal, using the others",
				"portal", l.Portals[i], "target", l.Iqn, "lun", l.Lun, "err", err)
		}
	}
	return d.joined(ctx, l, found)
}

// path returns the LUN's device behind one portal.
func (d *Driver) path(ctx context.Context, l *LUN, portal string, s *session, secrets map[string]string) (
	string, error) {
	if s == nil {
		var err error
		if s, err = d.login(ctx, l, portal, secrets); err != nil {
			return "", err
		}
	}
	return d.awaitDevice(ctx, s, l.Lun)
}

// NodeUnstageVolume undoes what NodeStageVolume or a kubelet has done.
func (d *Driver) NodeUnstageVolume(ctx context.Context, in *csipb.NodeUnstageVolumeRequest, _ ...grpc.CallOption) (
	*csipb.NodeUnstageVolumeResponse, error) {
	staging := in.StagingTargetPath
	if err := mounts.Unmount(staging); err != nil {
		return nil, err
	}
	l, err := d.load(staging)
	if err != nil {
		return nil, err
	}
	if l != nil { // else nothing was attached
		if err := d.detach(ctx, l, staging); err != nil {
			return nil, err
		}
	}
	return &csipb.NodeUnstageVolumeResponse{}, atomicfile.Remove(filepath.Join(staging, stateFile))
}

// detach removes the LUN's devices, and ends the sessions that have no other device.
func (d *Driver) detach(ctx context.Context, l *LUN, staging string) error {
	ctx, unlock, err := d.lockTarget(ctx, l)
	if err != nil {
		return err
	}
	defer unlock()
	for _, portal := range l.Portals {
		s, err := d.find(l, portal)
		if err != nil {
			return err
		}
		if !d.mayEnd(l, portal, s) {
			if err := d.leaveForeign(l, staging, portal); err != nil {
				return err
			}
			continue
		}
		if s != nil {
			err = d.drop(ctx, s, l.Lun)
		}
		if err == nil {
			err = d.leave(ctx, l, portal)
		}
		if err != nil {
			return err
		}
	}
	return d.dropIface(ctx, l)
}

// NodePublishVolume mounts a staged LUN for a pod.
func (d *Driver) NodePublishVolume(ctx context.Context, in *csipb.NodePublishVolumeRequest, _ ...grpc.CallOption) (
	*csipb.NodePublishVolumeResponse, error) {
	publish := d.publishMount
	if in.VolumeCapability.GetBlock() != nil {
		publish = d.publishDevice
	}
	return &csipb.NodePublishVolumeResponse{}, publish(ctx, in)
}

func (d *Driver) publishMount(_ context.Context, in *csipb.NodePublishVolumeRequest) error {
	staging, target := in.StagingTargetPath, in.TargetPath
	if !mounts.At(staging) {
		return fmt.Errorf("iscsi: nothing is mounted at %s any more", staging)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(staging, &fs); err != nil {
		return fmt.Errorf("iscsi: statfs %s: %w", staging, err)
	}
	if fs.Flags&unix.ST_RDONLY != 0 && !in.Readonly {
		return errors.New("iscsi: the LUN is mounted read-only on this node for another pod: " +
			"it can be mounted for writing when that pod has terminated")
	}
	if !mounts.At(target) {
		if err := unix.Mount(staging, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("iscsi: bind mount %s: %w", staging, err)
		}
	}
	if in.Readonly {
		kept := uintptr(fs.Flags) & (unix.MS_NOEXEC | unix.MS_NOSUID | unix.MS_NODEV) // else a remount clears them
		if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|kept, ""); err != nil {
			return fmt.Errorf("iscsi: make %s read-only: %w", target, err)
		}
	}
	return nil
}

// publishDevice bind mounts the device on a file.
func (d *Driver) publishDevice(ctx context.Context, in *csipb.NodePublishVolumeRequest) error {
	if mounts.At(in.TargetPath) {
		return nil
	}
	l, err := d.load(in.StagingTargetPath)
	if err != nil {
		return err
	}
	if l == nil {
		return fmt.Errorf("iscsi: the state file in %s is missing", in.StagingTargetPath)
	}
	path, err := d.device(ctx, l)
	if err != nil {
		return err
	}
	return d.bindDevice(l, path, in.TargetPath)
}

// bindDevice bind mounts a LUN's device on a file.
func (d *Driver) bindDevice(l *LUN, path, target string) error {
	device, err := os.Open(path)
	if err != nil {
		return err
	}
	defer device.Close()
	if err := d.stillDevice(l, path); err != nil { // the open device keeps its name from now on
		return err
	}
	return mounts.BindDevice(device, target)
}

// device returns the device of an attached LUN.
func (d *Driver) device(ctx context.Context, l *LUN) (string, error) {
	sessions, err := d.sessions(l)
	if err != nil {
		return "", err
	}
	var names []string
	for _, portal := range l.Portals {
		if s := sessions[portal]; s != nil && s.block(l.Lun) != "" {
			names = append(names, s.block(l.Lun))
		}
	}
	if len(names) == 0 {
		return "", fmt.Errorf("iscsi: LUN %s of %s is no longer attached to this node", l.Lun, l.Iqn)
	}
	return d.joined(ctx, l, names)
}

// NodeUnpublishVolume unmounts a LUN for a pod.
func (d *Driver) NodeUnpublishVolume(_ context.Context, in *csipb.NodeUnpublishVolumeRequest, _ ...grpc.CallOption) (
	*csipb.NodeUnpublishVolumeResponse, error) {
	return &csipb.NodeUnpublishVolumeResponse{}, mounts.Unmount(in.TargetPath)
}
