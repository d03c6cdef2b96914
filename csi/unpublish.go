package csi

import (
	"context"
	"fmt"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/types"
)

// Unpublish takes a volume from a pod, by the name that Used gave, and the pod's claim with it. The last claim lets the
// volume be unstaged, which nobody waits for here. The containers of the pod must have ended.
func (c *CSI) Unpublish(ctx context.Context, pod types.UID, name string) error {
	unlock, err := c.locks.Lock(ctx, useID(pod, name))
	if err != nil {
		return err
	}
	defer unlock()
	for {
		k, found := c.find(pod, name)
		if !found {
			return nil
		}
		if err := c.unpublish(ctx, k, pod, name); err != nil {
			return fmt.Errorf("UnmountVolume.TearDown failed for volume %q : %w", name, err)
		}
	}
}

func (c *CSI) unpublish(ctx context.Context, k key, pod types.UID, name string) error {
	id := useID(pod, name)
	rec := c.look(k)
	u := rec.Uses[id]
	if u.Publish != none {
		if err := c.unpublishCall(ctx, k, pod, u); err != nil {
			return err
		}
	}
	if err := c.removeTarget(rec, u); err != nil {
		return err
	}
	release, err := c.locks.Lock(ctx, k.String())
	if err != nil {
		return err
	}
	defer release()
	if err := c.update(k, overCrash, func(r *record) { delete(r.Uses, id) }); err != nil {
		return err
	}
	c.sweep(k)
	return nil
}

func (c *CSI) unpublishCall(ctx context.Context, k key, pod types.UID, u *use) error {
	d, done, err := c.use(ctx, k.driver, pod)
	if err != nil {
		return err
	}
	defer done()
	// Not ended when the step is given up: what was cut off would have to be asked for again.
	return d.call(ctx, "NodeUnpublishVolume", func(ctx context.Context) error {
		_, err := d.node.NodeUnpublishVolume(ctx, &csipb.NodeUnpublishVolumeRequest{VolumeId: k.handle, TargetPath: c.files.abs(u.Target)})
		return err
	})
}

// removeTarget removes what was made around a target. A driver should have removed the target itself; an empty directory it
// left goes too, anything else stops this.
func (c *CSI) removeTarget(rec *record, u *use) error {
	if rec.Block && c.files.mounted(u.Target) {
		return fmt.Errorf("%s is still mounted though its driver says that the volume is gone: unmount it", c.files.abs(u.Target))
	}
	return c.files.removeAll(layoutOf(rec.Driver).aroundTarget(rec, u)...)
}

// removeStaging removes what was made around a staging path.
func (c *CSI) removeStaging(rec *record) error {
	return c.files.removeAll(layoutOf(rec.Driver).aroundStaging(rec)...)
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

const (
	sweepFirst = 200 * time.Millisecond
	sweepMax   = 2 * time.Minute
)

// sweepAll sees to all volumes that nobody claims.
func (c *CSI) sweepAll() {
	c.mu.Lock()
	var idle []key
	for k, v := range c.volumes {
		if len(v.rec.Uses) == 0 {
			idle = append(idle, k)
		}
	}
	c.mu.Unlock()
	for _, k := range idle {
		c.sweep(k)
	}
}

// sweep unstages a volume that nobody claims, in the background, and goes on trying: an attempt that failed waits for its
// driver to register anew, or a while. Trouble is logged once for each cause.
func (c *CSI) sweep(k key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.volumes[k]
	if c.sweeping[k] || c.ctx.Err() != nil || v == nil || len(v.rec.Uses) > 0 {
		return
	}
	c.sweeping[k] = true
	c.alive.Go(func() { c.sweepUntilDone(k) })
}

func (c *CSI) sweepUntilDone(k key) {
	for wait, last := sweepFirst, ""; ; {
		err := c.unstage(c.ctx, k)
		if c.swept(k) {
			return
		}
		if err == nil {
			continue
		}
		if err.Error() != last {
			c.log.Warn("cannot unstage a volume that no pod uses, trying again", "driver", k.driver, "volume", k.handle, "err", err)
			last = err.Error()
		}
		c.pause(k, wait)
		wait = min(2*wait, sweepMax)
	}
}

// swept says, after an attempt, that the sweep may end: the volume is gone or claimed, or the agent ends. A claim that came
// and went meanwhile has left the rest to this sweep.
func (c *CSI) swept(k key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.volumes[k]; c.ctx.Err() == nil && v != nil && len(v.rec.Uses) == 0 {
		return false
	}
	delete(c.sweeping, k)
	return true
}

// pause waits until a volume is worth another attempt.
func (c *CSI) pause(k key, wait time.Duration) {
	c.mu.Lock()
	arrived := c.arrived
	if c.drivers[k.driver] == nil {
		wait = time.Hour // what it waits for is the driver
	}
	c.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-arrived:
	case <-timer.C:
	case <-c.ctx.Done():
	}
}

// unstage takes a volume down that no pod claims. One that is claimed meanwhile stays.
func (c *CSI) unstage(ctx context.Context, k key) error {
	unlock, err := c.locks.Lock(ctx, k.String())
	if err != nil {
		return err
	}
	defer unlock()
	rec := c.look(k)
	if rec == nil || len(rec.Uses) > 0 {
		return nil
	}
	if err := c.takeDown(ctx, rec); err != nil {
		return err
	}
	return c.update(k, overCrash, func(r *record) { r.Stage = none })
}

// takeDown ends the staging of a volume that nobody uses.
func (c *CSI) takeDown(ctx context.Context, rec *record) error {
	if rec.Stage != none {
		if err := c.unstageCall(ctx, rec); err != nil {
			return err
		}
	}
	return c.removeStaging(rec)
}

func (c *CSI) unstageCall(ctx context.Context, rec *record) error {
	d, done, err := c.use(ctx, rec.Driver, "")
	if err != nil {
		return err
	}
	defer done()
	if !d.can[csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		return nil
	}
	if err := c.update(rec.key(), overPowerCut, func(r *record) { r.Stage = intent }); err != nil {
		return err
	}
	return d.call(ctx, "NodeUnstageVolume", func(ctx context.Context) error {
		_, err := d.node.NodeUnstageVolume(ctx, &csipb.NodeUnstageVolumeRequest{
			VolumeId: rec.Handle, StagingTargetPath: c.files.abs(rec.Staging)})
		return err
	})
}
