package csi

import (
	"context"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/types"
)

// Stats is the usage of a published volume. A value that its driver does not report is nil.
type Stats struct {
	Bytes, Inodes Usage
	// Condition is nil without Config.Health, and for drivers that do not report it.
	Condition *Condition
}

// Usage is the usage of one resource of a volume.
type Usage struct{ Available, Total, Used *int64 }

// Stats asks the driver for the usage of a pod's volume, by a name that Used returned. ok is false if the driver does
// not report it.
func (c *CSI) Stats(ctx context.Context, pod types.UID, name string) (s Stats, ok bool, err error) {
	k, found := c.records.find(pod, name)
	if !found {
		return s, false, fmt.Errorf("pod %s has no CSI volume %q", pod, name)
	}
	d, done := c.drivers.now(k.driver)
	defer done()
	rec := c.records.get(k)
	if d == nil || rec == nil || rec.Uses[useID(pod, name)] == nil ||
		!d.can(csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS) {
		return s, false, nil
	}
	r := &csipb.NodeGetVolumeStatsRequest{
		VolumeId:   k.handle,
		VolumePath: c.files.abs(rec.Uses[useID(pod, name)].Target),
	}
	if rec.Stage != none && d.can(csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		r.StagingTargetPath = c.files.abs(rec.Staging)
	}
	got, err := call(ctx, d, "NodeGetVolumeStats", d.node.NodeGetVolumeStats, r)
	if err != nil {
		return s, false, err
	}
	if c.cfg.Health {
		if s.Condition, err = d.condition(ctx, r, got); err != nil {
			c.log.Warn("cannot get the condition of a volume from its driver",
				"driver", k.driver, "volume", k.handle, "err", err)
		}
	}
	for _, u := range got.GetUsage() {
		usage := Usage{&u.Available, &u.Total, &u.Used}
		switch u.GetUnit() {
		case csipb.VolumeUsage_BYTES:
			s.Bytes = usage
		case csipb.VolumeUsage_INODES:
			s.Inodes = usage
		}
	}
	return s, true, nil
}
