package volumes

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/kube/storage"
)

// mountCSI mounts a PersistentVolume of a CSI driver.
func (m *mounting) mountCSI(ctx context.Context, claim *storage.Claim, readOnly bool) (Mounted, error) {
	s := claim.PV.Spec.CSI
	driver, err := m.cfg.Cluster.Driver(ctx, s.Driver)
	if err != nil {
		return Mounted{}, err
	}
	d := &driven{mounting: m, driver: driver, volume: persistentVolume(claim, driver, readOnly), pv: claim.PV}
	d.attach, d.prepare = d.attachCSI, d.prepareCSI
	mounted, p, err := d.mount(ctx)
	if err != nil {
		return Mounted{}, err
	}
	mounted.RefreshAt = refreshAt()
	switch {
	case p.Expands:
		err = d.unlessInUse(claim.PV.Name, d.expandCSI(ctx, claim))
	case claim.Growth() != nil && !readOnly:
		d.notGrown(ctx, claim, fmt.Errorf("NodeExpand is not supported by the CSI driver %s", s.Driver), false)
	}
	return mounted, err
}

// persistentVolume describes a PersistentVolume to csi.
func persistentVolume(claim *storage.Claim, driver *storagev1.CSIDriver, readOnly bool) *csi.Volume {
	pv, s := claim.PV, claim.PV.Spec.CSI
	return &csi.Volume{
		Driver:       s.Driver,
		Handle:       s.VolumeHandle,
		Name:         pv.Name,
		Block:        claim.Block(),
		Attachable:   *driver.Spec.AttachRequired,
		FSType:       s.FSType,
		MountOptions: pv.Spec.MountOptions,
		AccessMode:   accessMode(pv),
		ReadOnly:     readOnly,
		Attributes:   s.VolumeAttributes,
	}
}

func accessMode(pv *corev1.PersistentVolume) corev1.PersistentVolumeAccessMode {
	if len(pv.Spec.AccessModes) > 0 {
		return pv.Spec.AccessModes[0]
	}
	return corev1.ReadWriteOnce
}

// attachCSI waits until the volume is attached.
func (d *driven) attachCSI(ctx context.Context) error {
	v := d.volume
	at, err := d.cfg.Cluster.Attached(ctx, d.Pod.UID, csi.UniqueName(v.Driver, v.Handle), v.Driver, v.Handle)
	if err != nil {
		d.limited(ctx, err)
		return err
	}
	v.Attachment = csi.Attachment{UID: at.UID, Context: at.Context}
	return nil
}

// prepareCSI reads the secret for publishing the volume.
func (d *driven) prepareCSI(ctx context.Context) (err error) {
	v, s := d.volume, d.pv.Spec.CSI
	v.Secrets.Stage = func(ctx context.Context) (map[string]string, error) { return d.secret(ctx, s.NodeStageSecretRef) }
	v.Secrets.Publish, err = d.secret(ctx, s.NodePublishSecretRef)
	return err
}

// limited acts on an error of an attachment if the node has as many volumes as the driver allows, and the driver says
// that this number can change (KEP-4876): the driver is asked for the number, and a pod that cannot have its volume is
// given up, so that its controller replaces it on another node.
func (d *driven) limited(ctx context.Context, err error) {
	limit, ok := errors.AsType[*storage.LimitError](err)
	if d.driver.Spec.NodeAllocatableUpdatePeriodSeconds == nil || !ok {
		return
	}
	d.csi.LimitsExceeded(d.volume.Driver)
	if limit.Lasting {
		d.cfg.LimitExceeded(ctx, d.Pod,
			fmt.Sprintf("Node has reached its volume attachment limit, rejecting pod. unattached volumes=[%s]: %v",
				d.Volume.Name, err))
	}
}

// secret reads a Secret that a PersistentVolume refers to, if any.
func (m *mounting) secret(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	return m.cfg.Cluster.Secret(ctx, ref.Namespace, ref.Name)
}

// mountInline mounts an inline CSI volume, which exists as long as the pod.
func (m *mounting) mountInline(ctx context.Context) (Mounted, error) {
	s, name := m.Volume.CSI, m.Volume.Name
	driver, err := m.cfg.Cluster.Driver(ctx, s.Driver)
	if err != nil {
		return Mounted{}, err
	}
	v := &csi.Volume{
		Driver:     s.Driver,
		Handle:     csi.InlineHandle(m.Pod.UID, name),
		Name:       name,
		Ephemeral:  true,
		AccessMode: corev1.ReadWriteOnce,
		Attributes: s.VolumeAttributes,
		ReadOnly:   ptr.Deref(s.ReadOnly, false),
	}
	if s.FSType != nil {
		v.FSType = *s.FSType
	}
	d := &driven{mounting: m, driver: driver, volume: v}
	d.prepare = func(ctx context.Context) (err error) {
		if ref := s.NodePublishSecretRef; ref != nil {
			v.Secrets.Publish, err = m.cfg.Cluster.Secret(ctx, m.Pod.Namespace, ref.Name)
		}
		return err
	}
	mounted, _, err := d.mount(ctx)
	mounted.RefreshAt = refreshAt()
	return mounted, err
}
