package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/mounts"
)

// Unpublish unpublishes a volume for a pod, by a name that Used returned, and ends the use. After the last use the
// volume is unstaged in the background. The containers of the pod must have ended.
func (c *CSI) Unpublish(ctx context.Context, pod types.UID, name string) error {
	unlock, err := c.uses.Lock(ctx, useID(pod, name))
	if err != nil {
		return err
	}
	defer unlock()
	for {
		k, found := c.records.find(pod, name)
		if !found {
			return c.removeUnrecorded(pod, name)
		}
		if err := c.unpublish(ctx, k, pod, name); err != nil {
			return fmt.Errorf("UnmountVolume.TearDown failed for volume %q : %w", name, err)
		}
	}
}

// removeUnrecorded removes the directory of a volume that no record and no vol_data.json names. An agent that ended, or
// a disk that failed, before the first record has left it; no driver was called for it. A vol_data.json without a
// record is one that recovery could not read: a driver was called, and nobody knows which.
func (c *CSI) removeUnrecorded(pod types.UID, name string) error {
	target := Target(pod, name, false)
	dir := filepath.Dir(target)
	_, err := c.files.root.Lstat(filepath.Join(dir, dataFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err := c.files.removeAll(aroundMount(target)...)
		if err == nil && c.records.reveal(useID(pod, name)) {
			c.unstageUnused()
		}
		return err
	case err != nil:
		return err
	}
	return fmt.Errorf("UnmountVolume.TearDown failed for volume %q : its driver is not known, because %s is damaged: "+
		"unmount what is mounted beside that file, and remove its directory", name, c.files.abs(filepath.Join(dir, dataFile)))
}

func (c *CSI) unpublish(ctx context.Context, k key, pod types.UID, name string) error {
	id := useID(pod, name)
	rec := c.records.get(k)
	u := rec.Uses[id]
	if err := c.files.release(rec, u); err != nil {
		return err
	}
	if u.Publish != none {
		if err := c.unpublishCall(ctx, k, pod, u); err != nil {
			return err
		}
	}
	if err := c.files.removeTarget(rec, u); err != nil {
		return err
	}
	if err := c.records.update(k, surviveCrash, func(r *record) { delete(r.Uses, id) }); err != nil {
		return err
	}
	c.unstageLater(k)
	return nil
}

func (c *CSI) unpublishCall(ctx context.Context, k key, pod types.UID, u *use) error {
	d, done, err := c.drivers.get(ctx, k.driver, pod)
	if err != nil {
		return err
	}
	defer done()
	lock, err := c.calls.lock(ctx, k)
	if err != nil {
		return err
	}
	defer lock.release()
	return change(ctx, lock, d, "NodeUnpublishVolume", d.node.NodeUnpublishVolume, &csipb.NodeUnpublishVolumeRequest{
		VolumeId:   k.handle,
		TargetPath: c.files.abs(u.Target),
	})
}

// removeTarget removes the directories and links around a target. The driver should have removed the target itself; an
// empty directory that it left is removed too, anything else is an error.
func (f files) removeTarget(rec *record, u *use) error {
	if rec.Block && f.mounted(u.Target) {
		return fmt.Errorf("%s is still mounted although its driver has unpublished the volume: unmount it",
			f.abs(u.Target))
	}
	return f.removeAll(layoutOf(rec.Driver).aroundTarget(rec, u)...)
}

// removeStaging removes the directories around a staging path.
func (f files) removeStaging(rec *record) error {
	return f.removeAll(layoutOf(rec.Driver).aroundStaging(rec)...)
}

// removeAll removes files and empty directories in order.
func (f files) removeAll(paths ...string) error {
	for _, path := range paths {
		if err := f.remove(path); err != nil {
			return err
		}
	}
	return nil
}

// The first and the longest back-off between attempts to unstage a volume, the latter about that of the kubelet.
const (
	unstageFirst = 200 * time.Millisecond
	unstageMax   = 2 * time.Minute
)

// unstageUnused unstages all volumes that no pod uses, in the background.
func (c *CSI) unstageUnused() {
	for _, k := range c.records.unused() {
		c.unstageLater(k)
	}
}

// unstageLater unstages a volume in the background, if no pod uses it. A failed attempt is repeated when its driver
// registers again, or after a while.
func (c *CSI) unstageLater(k key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unstaging[k] || c.background.Ended() || !c.records.isUnused(k) {
		return
	}
	c.unstaging[k] = true
	c.background.Go(func() { c.unstageUntilDone(k) })
}

// unstageUntilDone logs each error once.
func (c *CSI) unstageUntilDone(k key) {
	for wait, last := unstageFirst, ""; ; {
		err := c.unstage(c.background.Context(), k)
		if c.unstagingEnded(k) {
			return
		}
		if err == nil {
			continue
		}
		if err.Error() != last {
			c.log.Warn("cannot unstage a volume that no pod uses, retrying",
				"driver", k.driver, "volume", k.handle, "retryIn", wait, "err", err)
			last = err.Error()
		}
		c.pause(k, wait)
		wait = min(2*wait, unstageMax)
	}
}

// unstagingEnded reports whether, after an attempt, the background work on a volume ends: the volume is gone or in use,
// or the process ends. A use that came and went in between has left the unstaging to this goroutine.
func (c *CSI) unstagingEnded(k key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.background.Ended() && c.records.isUnused(k) {
		return false
	}
	delete(c.unstaging, k)
	return true
}

// pause waits until another attempt on a volume is worthwhile.
func (c *CSI) pause(k key, wait time.Duration) {
	next, registered := c.drivers.registration(k.driver)
	if !registered {
		wait = time.Hour // it waits for the driver
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-next:
	case <-timer.C:
	case <-c.background.Context().Done():
	}
}

// unstage unstages a volume, unless a pod uses it.
func (c *CSI) unstage(ctx context.Context, k key) error {
	lock, err := c.calls.lock(ctx, k)
	if err != nil {
		return err
	}
	defer lock.release()
	rec := c.records.get(k)
	if rec == nil || len(rec.Uses) > 0 {
		return nil
	}
	if err := c.checkMountedOnce(ctx, rec); err != nil {
		return err
	}
	return c.takeDown(ctx, lock, rec)
}

// checkMountedOnce returns an error if a staged file system that no pod uses is mounted elsewhere on the node too, by
// hand or by a program: its disk would be detached while it is written. What does not work any more is not checked, nor
// a volume whose driver mounts nothing to stage it. The kubelet does the same.
func (c *CSI) checkMountedOnce(ctx context.Context, rec *record) error {
	if rec.Block || rec.Stage == none || !c.files.works(ctx, rec, rec.Staging) {
		return nil
	}
	staging := c.files.abs(rec.Staging)
	points, err := mounts.Others(staging)
	if err != nil {
		return err
	}
	if points = slices.DeleteFunc(points, c.records.has); len(points) > 0 {
		return fmt.Errorf("the device mount path %q is still mounted by other references %q: unmount them", staging, points)
	}
	return nil
}

// takeDown unstages a volume that no pod uses, and records that. The caller holds the volume's lock.
func (c *CSI) takeDown(ctx context.Context, lock *callLock, rec *record) error {
	if rec.Stage != none {
		if err := c.unstageCall(ctx, lock, rec); err != nil {
			return err
		}
	}
	if !c.records.replaced(rec) {
		for _, dir := range layoutOf(rec.Driver).devices(rec) {
			if err := c.files.empty(dir); err != nil {
				return err
			}
		}
		if err := c.files.removeStaging(rec); err != nil {
			return err
		}
	}
	return c.records.update(rec.key(), surviveCrash, func(r *record) {
		r.Stage = none
		r.Block = r.Block && len(r.Uses) > 0
	})
}

func (c *CSI) unstageCall(ctx context.Context, lock *callLock, rec *record) error {
	d, done, err := c.drivers.get(ctx, rec.Driver, "")
	if err != nil {
		return err
	}
	defer done()
	if !d.can(csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		return nil
	}
	if err := c.records.update(rec.key(), surviveCrash, func(r *record) { r.Stage = intent }); err != nil {
		return err
	}
	return change(ctx, lock, d, "NodeUnstageVolume", d.node.NodeUnstageVolume, &csipb.NodeUnstageVolumeRequest{
		VolumeId:          rec.Handle,
		StagingTargetPath: c.files.abs(rec.Staging),
	})
}
