package volumes

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	translate "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"

	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/storage"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// inTree turns volumes of in-tree kinds into those of the CSI drivers that replace them (KEP-625), by the rules that
// the attach/detach controller has, so that both give a volume the same name.
var inTree = translate.New()

// quiet discards what the translation logs.
var quiet klog.Logger

// migrated returns the PersistentVolume that a driver mounts in place of pv: pv itself unless it is of an in-tree kind
// that was replaced.
func migrated(pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	if !inTree.IsPVMigratable(pv) {
		return pv, nil
	}
	translated, err := inTree.TranslateInTreePVToCSI(quiet, pv)
	if err != nil {
		return nil, fmt.Errorf("translate PersistentVolume %q to that of a CSI driver: %w", pv.Name, err)
	}
	return translated, nil
}

// claimOf returns what a pod's own volume of an in-tree kind would be with a claim. readOnly is what the volume says.
func claimOf(v *corev1.Volume, namespace string) (claim *storage.Claim, readOnly bool, err error) {
	pv, err := inTree.TranslateInTreeInlineVolumeToCSI(quiet, v, namespace)
	if err != nil {
		return nil, false, fmt.Errorf("translate volume %q to that of a CSI driver: %w", v.Name, err)
	}
	return &storage.Claim{PVC: &corev1.PersistentVolumeClaim{}, PV: pv}, pv.Spec.CSI.ReadOnly, nil
}

// claim returns the claim of a pod's volume, whose PersistentVolume is not of an in-tree kind that was replaced.
// readOnly: no volume of the pod asks to write to it.
func (m *mounting) claim(ctx context.Context) (claim *storage.Claim, readOnly bool, err error) {
	v := m.Volume
	if podfs.Replaced(v.VolumeSource) {
		return claimOf(v, m.Pod.Namespace)
	}
	bound, err := m.cfg.Cluster.Claim(ctx, m.Pod, v)
	if err != nil {
		return nil, false, fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", v.Name, err)
	}
	pv, err := migrated(bound.PV)
	return &storage.Claim{PVC: bound.PVC, PV: pv}, asksReadOnly(v) && !m.writesElsewhere(), err
}

// asksReadOnly reports whether a volume asks to read only what is in its claim.
func asksReadOnly(v *corev1.Volume) bool {
	return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly
}

// writesElsewhere reports whether a volume that the pod uses asks to write to the claim of this one: all volumes of a
// pod with one claim share a mount.
func (m *mounting) writesElsewhere() bool {
	name := storage.ClaimName(m.Pod, m.Volume)
	for v := range podutil.UsedVolumes(&m.Pod.Spec) {
		if storage.ClaimName(m.Pod, v) == name && !asksReadOnly(v) {
			return true
		}
	}
	return false
}
