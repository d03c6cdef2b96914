package volumes

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/kube/storage"
	"github.com/nodelet/nodelet/volumes/block"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// nodeExpand makes the call that expands a volume on the node.
type nodeExpand func(ctx context.Context, size int64) error

// expandCSI has the driver expand a volume if its claim asks the node for that, or if another node has expanded it.
func (d *driven) expandCSI(ctx context.Context, claim *storage.Claim) error {
	size, _, err := d.growth(claim)
	if err != nil || size == nil {
		return err
	}
	if d.Refresh && !claim.Overtaken() && d.csi.Refuses(d.volume, size.Value()) {
		return nil // the mount for another pod tries it again
	}
	return d.oneByOne(ctx, claim, d.expandInTurn)
}

// growth returns the size to which the driver has to expand a volume, nil if it does not have to, and whether that is
// because another node has expanded it.
func (d *driven) growth(claim *storage.Claim) (size *resource.Quantity, elsewhere bool, err error) {
	has, err := d.csi.Size(d.volume, claim.PVC.Status.Capacity.Storage().Value())
	if err != nil {
		return nil, false, err
	}
	if size := claim.GrowthElsewhere(has); size != nil && !d.volume.ReadOnly {
		return size, true, nil
	}
	return claim.Growth(), false, nil
}

// oneByOne expands a volume while no other step does, with the claim as it is then: a step for another pod may have
// expanded the volume.
func (m *mounting) oneByOne(ctx context.Context, claim *storage.Claim,
	expand func(context.Context, *storage.Claim) error) error {
	unlock, err := m.alone.Lock(ctx, claim.PV.Name)
	if err != nil {
		return err
	}
	defer unlock()
	now, _, err := m.claim(ctx)
	if err != nil || now.PV.Name != claim.PV.Name {
		return err
	}
	return expand(ctx, now)
}

// expandInTurn has the driver expand a volume; see oneByOne.
func (d *driven) expandInTurn(ctx context.Context, claim *storage.Claim) error {
	call := func(ctx context.Context, size int64) error {
		secrets, err := d.secret(ctx, claim.PV.Spec.CSI.NodeExpandSecretRef)
		if err != nil {
			return err
		}
		return d.csi.Expand(ctx, d.Pod.UID, d.volume, size, secrets)
	}
	size, elsewhere, err := d.growth(claim)
	if err != nil {
		return err
	}
	if elsewhere {
		return d.expandAndReport(ctx, claim, size.Value(), call) // the claim's status shows the new size already
	}
	return d.expandIfAsked(ctx, claim, d.volume.ReadOnly, call)
}

// expandLocal expands the file system of a local device to the size of the device if its claim asks the node for that.
func (m *mounting) expandLocal(ctx context.Context, claim *storage.Claim, p podfs.Persistent) error {
	if claim.Growth() == nil {
		return nil
	}
	call := func(ctx context.Context, _ int64) error { return m.cfg.Pods.Grow(ctx, p) }
	return m.oneByOne(ctx, claim, func(ctx context.Context, now *storage.Claim) error {
		return m.expandIfAsked(ctx, now, p.ReadOnly, call)
	})
}

// expandIfAsked expands a volume if its claim asks the node for that, and writes the result into the claim's status.
func (m *mounting) expandIfAsked(ctx context.Context, claim *storage.Claim, readOnly bool, call nodeExpand) error {
	size, name := claim.Growth(), claim.PV.Name
	if size == nil {
		return nil
	}
	if readOnly {
		if !m.Refresh { // once is enough, as with the kubelet
			m.event(claim, corev1.EventTypeWarning, "FileSystemResizeFailed",
				fmt.Sprintf("MountVolume.NodeExpandVolume failed for volume %q requested read-only file system", name))
		}
		return nil
	}
	if err := m.cfg.Cluster.Growing(ctx, claim); err != nil {
		return err
	}
	err := m.expandAndReport(ctx, claim, size.Value(), call)
	var refused *csi.ExpandError
	switch {
	case err == nil:
		return m.cfg.Cluster.Grown(ctx, claim, *size)
	case errors.As(err, &refused), errors.Is(err, block.ErrNotGrown):
		m.notGrown(ctx, claim, errors.Unwrap(err), refused != nil && refused.Never)
	}
	return err
}

// notGrown writes into a claim's status why its volume could not be expanded.
func (m *mounting) notGrown(ctx context.Context, claim *storage.Claim, cause error, never bool) {
	if err := m.cfg.Cluster.NotGrown(ctx, claim, cause, never); err != nil {
		m.log().Warn("cannot report a failed expansion in the status of the PersistentVolumeClaim",
			"volume", claim.PV.Name, "err", err)
	}
}

// expandAndReport expands a volume, and records an event if that succeeds.
func (m *mounting) expandAndReport(ctx context.Context, claim *storage.Claim, size int64, call nodeExpand) error {
	if err := call(ctx, size); err != nil {
		return fmt.Errorf("MountVolume.NodeExpandVolume failed for volume %q : %w", claim.PV.Name, err)
	}
	m.event(claim, corev1.EventTypeNormal, "FileSystemResizeSuccessful",
		fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", claim.PV.Name, m.Pod.Spec.NodeName))
	return nil
}

// event records an event about the pod and about the claim of its volume.
func (m *mounting) event(claim *storage.Claim, eventType, reason, message string) {
	m.cfg.Event(m.Pod, eventType, reason, message)
	m.cfg.ClaimEvent(claim.PVC, eventType, reason, message)
}

// ExpansionError says why a volume, which is mounted, has not been expanded.
type ExpansionError struct{ Err error }

func (e *ExpansionError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *ExpansionError) Unwrap() error { return e.Err }

// unlessInUse returns the error of an expansion as an ExpansionError. A volume that cannot grow while it is in use does
// not keep the pod from running.
func (m *mounting) unlessInUse(volume string, err error) error {
	if err == nil {
		return nil
	}
	if refused, ok := errors.AsType[*csi.ExpandError](err); ok && refused.InUse {
		m.log().Warn("volume cannot grow while it is in use", "volume", volume, "err", err)
		return nil
	}
	return &ExpansionError{err}
}
