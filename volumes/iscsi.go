package volumes

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/kube/storage"
	"github.com/nodelet/nodelet/volumes/iscsi"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// secretReader reads the Secret of an iSCSI volume by its name.
type secretReader func(ctx context.Context, name string) (map[string]string, error)

// mountPodISCSI mounts a LUN that the pod itself names.
func (m *mounting) mountPodISCSI(ctx context.Context) (Mounted, error) {
	s := m.Volume.ISCSI
	v, err := iscsiVolume(m.Volume.Name, s, s.ReadOnly)
	if err != nil {
		return Mounted{}, err
	}
	mounted, _, err := m.iscsi(v, nil, s, m.podSecret).mount(ctx)
	return mounted, err
}

// mountISCSI mounts the LUN of a PersistentVolume.
func (m *mounting) mountISCSI(ctx context.Context, claim *storage.Claim, readOnly bool) (Mounted, error) {
	pv := claim.PV
	s := iscsiSource(pv.Spec.ISCSI)
	v, err := iscsiVolume(pv.Name, s, readOnly)
	if err != nil {
		return Mounted{}, err
	}
	v.Block = claim.Block()
	v.MountOptions, v.AccessMode = podfs.MountOptions(pv), accessMode(pv)
	secret := func(ctx context.Context, name string) (map[string]string, error) {
		ref := corev1.SecretReference{Namespace: m.Pod.Namespace, Name: name}
		if own := pv.Spec.ISCSI.SecretRef; own.Namespace != "" {
			ref.Namespace = own.Namespace
		}
		return m.secret(ctx, &ref)
	}
	mounted, _, err := m.iscsi(v, pv, s, secret).mount(ctx)
	return mounted, err
}

// iscsi has the in-tree driver mount a LUN.
func (m *mounting) iscsi(
	v *csi.Volume, pv *corev1.PersistentVolume, s *corev1.ISCSIVolumeSource, secret secretReader) *driven {
	d := &driven{mounting: m, driver: iscsiDriver(), volume: v, pv: pv}
	d.attach = func(ctx context.Context) error {
		return m.cfg.Cluster.AttachedInTree(ctx, m.Pod.UID, v.Attachment.APIName)
	}
	d.prepare = func(context.Context) error { return d.prepareISCSI(s, secret) }
	return d
}

// iscsiSource describes a PersistentVolume's LUN as a pod would, without readOnly, which the claim of the pod says.
func iscsiSource(s *corev1.ISCSIPersistentVolumeSource) *corev1.ISCSIVolumeSource {
	out := &corev1.ISCSIVolumeSource{
		TargetPortal:    s.TargetPortal,
		IQN:             s.IQN,
		Lun:             s.Lun,
		ISCSIInterface:  s.ISCSIInterface,
		FSType:          s.FSType,
		Portals:         s.Portals,
		SessionCHAPAuth: s.SessionCHAPAuth,
		InitiatorName:   s.InitiatorName,
	}
	if s.SecretRef != nil {
		out.SecretRef = &corev1.LocalObjectReference{Name: s.SecretRef.Name}
	}
	return out
}

// iscsiVolume describes a LUN to csi.
func iscsiVolume(name string, s *corev1.ISCSIVolumeSource, readOnly bool) (*csi.Volume, error) {
	lun, err := iscsi.Of(name, s)
	if err != nil {
		return nil, fmt.Errorf("volume %q: %w", name, err)
	}
	lun.ReadOnly = readOnly
	return &csi.Volume{
		Driver:     pluginname.ISCSI,
		Handle:     lun.Handle(),
		Directory:  lun.Directory(),
		Name:       name,
		FSType:     s.FSType,
		ReadOnly:   readOnly,
		Attachable: true,
		Attachment: csi.Attachment{
			APIName: csi.UniqueName(pluginname.ISCSI, fmt.Sprintf("%s:%s:%d", s.TargetPortal, s.IQN, s.Lun)),
		},
		AccessMode: corev1.ReadWriteOnce,
		Attributes: lun.Attributes(),
	}, nil
}

// iscsiDriver is the CSIDriver that iscsi would have: the agent sets the fsGroup, and volumes are mounted with SELinux
// labels.
func iscsiDriver() *storagev1.CSIDriver {
	yes, no := true, false
	file := storagev1.FileFSGroupPolicy
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: pluginname.ISCSI},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired:               &yes,
			PodInfoOnMount:               &no,
			RequiresRepublish:            &no,
			SELinuxMount:                 &yes,
			ServiceAccountTokenInSecrets: &no,
			FSGroupPolicy:                &file,
			VolumeLifecycleModes:         []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
		},
	}
}

// prepareISCSI has the LUN staged with its password, if it has one.
func (d *driven) prepareISCSI(s *corev1.ISCSIVolumeSource, secret secretReader) error {
	if !s.SessionCHAPAuth {
		return nil
	}
	if s.SecretRef == nil {
		return errors.New("chapAuthSession is set, but no secretRef")
	}
	d.volume.Secrets.Stage = func(ctx context.Context) (map[string]string, error) { return secret(ctx, s.SecretRef.Name) }
	return nil
}

// podSecret reads a Secret of the pod's namespace.
func (m *mounting) podSecret(ctx context.Context, name string) (map[string]string, error) {
	got, err := m.objects.Secret(ctx, m.Pod.Namespace, name)
	if err != nil {
		return nil, fmt.Errorf("couldn't get secret %s/%s: %w", m.Pod.Namespace, name, err)
	}
	values := make(map[string]string, len(got.Data))
	for k, v := range got.Data {
		values[k] = string(v)
	}
	return values, nil
}
