package agent

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/kube/storage"
	"github.com/nodelet/nodelet/volumes"
	"github.com/nodelet/nodelet/volumes/block"
)

// expandCSI has a driver make a volume larger where its claim asks that of the node.
func (t *task) expandCSI(ctx context.Context, claim *storage.Claim, v *csi.Volume) error {
	return t.expand(ctx, claim, v.ReadOnly, func(ctx context.Context, size int64) error {
		secrets, err := t.volumeSecret(ctx, claim.PV.Spec.CSI.NodeExpandSecretRef)
		if err != nil {
			return err
		}
		return t.hands.CSI.Expand(ctx, t.pod.UID, v, size, secrets)
	})
}

// expandLocal brings the file system of a local device to the size of the device where its claim asks that of the node.
func (t *task) expandLocal(ctx context.Context, claim *storage.Claim, p volumes.Persistent) error {
	return t.expand(ctx, claim, p.ReadOnly, func(ctx context.Context, _ int64) error { return t.hands.Volumes.Grow(ctx, p) })
}

// expand makes a volume larger where its claim says that the node is to do that, and notes in the claim what came of it. A volume
// that cannot grow while it is in use does not keep the pod from running.
func (t *task) expand(ctx context.Context, claim *storage.Claim, readOnly bool, grow func(ctx context.Context, size int64) error) error {
	size, name := claim.Growth(), claim.PV.Name
	if size == nil {
		return nil
	}
	if readOnly {
		t.event(corev1.EventTypeWarning, "FileSystemResizeFailed",
			fmt.Sprintf("MountVolume.NodeExpandVolume failed for volume %q requested read-only file system", name))
		return nil
	}
	if err := t.hands.Storage.Growing(ctx, claim); err != nil {
		return err
	}
	err := grow(ctx, size.Value())
	var no *csi.ExpandError
	switch {
	case err == nil:
		t.event(corev1.EventTypeNormal, "FileSystemResizeSuccessful",
			fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", name, t.pod.Spec.NodeName))
		return t.hands.Storage.Grown(ctx, claim, *size)
	case errors.As(err, &no) && no.InUse:
		t.log.Warn("the volume cannot grow while it is in use", "volume", name, "err", err)
		return nil
	case no != nil, errors.Is(err, block.ErrNotGrown):
		if noteErr := t.hands.Storage.NotGrown(ctx, claim, err, no != nil && no.Never); noteErr != nil {
			t.log.Warn("cannot note in the claim that its volume did not grow", "err", noteErr)
		}
	}
	return fmt.Errorf("MountVolume.NodeExpandVolume failed for volume %q : %w", name, err)
}
