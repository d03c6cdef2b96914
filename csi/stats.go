package csi

import (
	"context"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/types"
)

// Stats are a driver's figures of a published volume. A figure that it does not give is nil.
type Stats struct {
	Bytes, Inodes Usage
	// Condition is nil where nobody asks for it (Config.Health), and for drivers that do not watch their volumes.
	Condition *Condition
}

// Usage is one kind of resource of a volume.
type Usage struct{ Available, Total, Used *int64 }

// Stats asks for the figures of a pod's volume, by the name that Used gave. ok is false where the driver does not tell any.
func (c *CSI) Stats(ctx context.Context, pod types.UID, name string) (s Stats, ok bool, err error) {
	k, found := c.find(pod, name)
	if !found {
		return s, false, fmt.Errorf("pod %s has no CSI volume %q", pod, name)
	}
	c.mu.Lock()
	d, v := c.drivers[k.driver], c.volumes[k]
	if d == nil || v == nil || v.rec.Uses[useID(pod, name)] == nil || !d.can[csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS] {
		c.mu.Unlock()
		return s, false, nil
	}
	rec := v.rec
	d.calls.Add(1)
	c.mu.Unlock()
	defer d.calls.Done()
	r := &csipb.NodeGetVolumeStatsRequest{VolumeId: k.handle, VolumePath: c.files.abs(rec.Uses[useID(pod, name)].Target)}
	if rec.Stage != none {
		r.StagingTargetPath = c.files.abs(rec.Staging)
	}
	var got *csipb.NodeGetVolumeStatsResponse
	err = d.call(ctx, "NodeGetVolumeStats", func(ctx context.Context) (err error) {
		got, err = d.node.NodeGetVolumeStats(ctx, r)
		return err
	})
	if err != nil {
		return s, false, err
	}
	if c.cfg.Health {
		if s.Condition, err = d.condition(ctx, r, got); err != nil {
			c.log.WarnContext(ctx, "ask a driver for the health of a volume", "driver", k.driver, "volume", k.handle, "error", err)
		}
	}
	for _, u := range got.GetUsage() {
		figures := Usage{&u.Available, &u.Total, &u.Used}
		switch u.GetUnit() {
		case csipb.VolumeUsage_BYTES:
			s.Bytes = figures
		case csipb.VolumeUsage_INODES:
			s.Inodes = figures
		}
	}
	return s, true, nil
}
