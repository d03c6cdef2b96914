package agent

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/kube/storage"
	"github.com/nodelet/nodelet/volumes"
	"github.com/nodelet/nodelet/volumes/iscsi"
)

// mountPodISCSI sets up a LUN that the pod itself names.
func (t *task) mountPodISCSI(ctx context.Context, vol *corev1.Volume) (volumes.Mounted, error) {
	if t.hands.CSI == nil {
		return volumes.Mounted{}, fmt.Errorf("volume %q: this node agent has nothing to keep iscsi volumes with", vol.Name)
	}
	v, driver := iscsiVolume(vol.Name, vol.ISCSI, vol.ISCSI.ReadOnly), t.iscsiDriver()
	m, _, err := t.prepareAndPublish(ctx, driver, v, func() error { return t.prepareISCSI(ctx, v, vol.ISCSI, t.podSecret) })
	return m, err
}

// mountISCSI sets up the LUN of a PersistentVolume.
func (t *task) mountISCSI(ctx context.Context, claim *storage.Claim, volume string, readOnly bool) (volumes.Mounted, error) {
	pv := claim.PV
	s := iscsiSource(pv.Spec.ISCSI)
	v, driver := iscsiVolume(pv.Name, s, readOnly || s.ReadOnly), t.iscsiDriver()
	v.Block, v.MountOptions = claim.Block(), volumes.MountOptions(pv)
	if len(pv.Spec.AccessModes) > 0 {
		v.AccessMode = pv.Spec.AccessModes[0]
	}
	secret := func(ctx context.Context, name string) (map[string]string, error) {
		ref := corev1.SecretReference{Namespace: t.pod.Namespace, Name: name}
		if own := pv.Spec.ISCSI.SecretRef; own.Namespace != "" {
			ref.Namespace = own.Namespace
		}
		return t.volumeSecret(ctx, &ref)
	}
	m, _, err := t.mountStaged(ctx, driver, pv, volume, v, func() error { return t.prepareISCSI(ctx, v, s, secret) })
	return m, err
}

// iscsiSource is a PersistentVolume's LUN as a pod would name it.
func iscsiSource(s *corev1.ISCSIPersistentVolumeSource) *corev1.ISCSIVolumeSource {
	out := &corev1.ISCSIVolumeSource{TargetPortal: s.TargetPortal, IQN: s.IQN, Lun: s.Lun, ISCSIInterface: s.ISCSIInterface, FSType: s.FSType,
		ReadOnly: s.ReadOnly, Portals: s.Portals, DiscoveryCHAPAuth: s.DiscoveryCHAPAuth, SessionCHAPAuth: s.SessionCHAPAuth,
		InitiatorName: s.InitiatorName}
	if s.SecretRef != nil {
		out.SecretRef = &corev1.LocalObjectReference{Name: s.SecretRef.Name}
	}
	return out
}

// iscsiVolume is a LUN as csi wants it.
func iscsiVolume(name string, s *corev1.ISCSIVolumeSource, readOnly bool) *csi.Volume {
	lun := iscsi.Of(name, s)
	lun.ReadOnly = readOnly
	return &csi.Volume{Driver: iscsi.Plugin, Handle: lun.Handle(), Directory: lun.Directory(), Name: name, FSType: s.FSType, ReadOnly: readOnly,
		Attachable: true, AccessMode: corev1.ReadWriteOnce, Attributes: lun.Attributes()}
}

// iscsiDriver says of iscsi what a CSIDriver says of a driver: its files are given to the pod's fsGroup, and it mounts with SELinux labels.
func (t *task) iscsiDriver() *storagev1.CSIDriver {
	yes, no, file := true, false, storagev1.FileFSGroupPolicy
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: iscsi.Plugin}, Spec: storagev1.CSIDriverSpec{AttachRequired: &yes,
		PodInfoOnMount: &no, RequiresRepublish: &no, SELinuxMount: &yes, ServiceAccountTokenInSecrets: &no, FSGroupPolicy: &file}}
}

// prepareISCSI claims the LUN, waits until no other node has it, and reads the password of its sessions.
func (t *task) prepareISCSI(ctx context.Context, v *csi.Volume, s *corev1.ISCSIVolumeSource,
	secret func(ctx context.Context, name string) (map[string]string, error)) (err error) {
	if err := t.hands.CSI.Claim(ctx, t.pod.UID, v); err != nil {
		return err
	}
	if t.hands.Storage != nil {
		if err := t.hands.Storage.AttachedInTree(ctx, t.pod.UID, csi.UniqueName(v.Driver, v.Handle)); err != nil {
			return fmt.Errorf("MountVolume.WaitForAttach failed for volume %q : %w", v.Name, err)
		}
	}
	if !s.SessionCHAPAuth {
		return nil
	}
	if s.SecretRef == nil {
		return errors.New("chapAuthSession is set, but no secretRef")
	}
	v.StageSecrets, err = secret(ctx, s.SecretRef.Name)
	return err
}

// podSecret reads a Secret of the pod's namespace.
func (t *task) podSecret(ctx context.Context, name string) (map[string]string, error) {
	got, err := t.hands.Objects(t.pod).Secret(ctx, t.pod.Namespace, name)
	if err != nil {
		return nil, fmt.Errorf("couldn't get secret %s/%s: %w", t.pod.Namespace, name, err)
	}
	values := make(map[string]string, len(got.Data))
	for k, v := range got.Data {
		values[k] = string(v)
	}
	return values, nil
}
