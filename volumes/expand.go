package volumes

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/kube/storage"
	"github.com/nodelet/nodelet/volumes/block"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// expandCSI has the driver grow a volume if its claim asks the node for that.
func (d *driven) expandCSI(ctx context.Context, claim *storage.Claim) error {
	return d.expand(ctx, claim, d.volume.ReadOnly, func(ctx context.Context, size int64) error {
		secrets, err := d.secret(ctx, claim.PV.Spec.CSI.NodeExpandSecretRef)
		if err != nil {
			return err
		}
		return d.csi.Expand(ctx, d.Pod.UID, d.volume, size, secrets)
	})
}

// expandLocal grows the file system of a local device to the size of the device if its claim asks the node for that.
func (m *mounting) expandLocal(ctx context.Context, claim *storage.Claim, p podfs.Persistent) error {
	grow := func(ctx context.Context, _ int64) error { return m.cfg.Pods.Grow(ctx, p) }
	return m.expand(ctx, claim, p.ReadOnly, grow)
}

// expand grows a volume if its claim asks the node for that, and writes the result into the claim's status. A volume
// that cannot grow while it is in use does not keep the pod from running.
func (m *mounting) expand(ctx context.Context, claim *storage.Claim, readOnly bool,
	grow func(ctx context.Context, size int64) error) error {
	size, name := claim.Growth(), claim.PV.Name
	if size == nil {
		return nil
	}
	if readOnly {
		m.cfg.Event(m.Pod, corev1.EventTypeWarning, "FileSystemResizeFailed",
			fmt.Sprintf("MountVolume.NodeExpandVolume failed for volume %q requested read-only file system", name))
		return nil
	}
	if err := m.cfg.Cluster.Growing(ctx, claim); err != nil {
		return err
	}
	err := grow(ctx, size.Value())
	var refused *csi.ExpandError
	switch {
	case err == nil:
		m.cfg.Event(m.Pod, corev1.EventTypeNormal, "FileSystemResizeSuccessful",
			fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", name, m.Pod.Spec.NodeName))
		return m.cfg.Cluster.Grown(ctx, claim, *size)
	case errors.As(err, &refused) && refused.InUse:
		m.log().Warn("volume cannot grow while it is in use", "volume", name, "err", err)
		return nil
	case refused != nil, errors.Is(err, block.ErrNotGrown):
		noteErr := m.cfg.Cluster.NotGrown(ctx, claim, err, refused != nil && refused.Never)
		if noteErr != nil {
			m.log().Warn("cannot write to the claim's status that its volume did not grow", "volume", name, "err", noteErr)
		}
	}
	return fmt.Errorf("MountVolume.NodeExpandVolume failed for volume %q : %w", name, err)
}
