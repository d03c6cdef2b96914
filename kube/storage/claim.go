package storage

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
)

// Claim is a PersistentVolumeClaim with the PersistentVolume that it is bound to.
type Claim struct {
	PVC *corev1.PersistentVolumeClaim
	PV  *corev1.PersistentVolume
}

// Block reports whether pods get the device itself.
func (c *Claim) Block() bool {
	return c.PV.Spec.VolumeMode != nil && *c.PV.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

// ClaimName returns the name of the claim of a pod's volume; empty for other kinds of volumes.
func ClaimName(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return pod.Name + "-" + v.Name
	}
	return ""
}

// Claim reads the claim of a pod's volume and the PersistentVolume bound to it. Its errors are worded like the
// kubelet's.
func (s *Storage) Claim(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (_ *Claim, err error) {
	name := ClaimName(pod, v)
	c := &Claim{PVC: &corev1.PersistentVolumeClaim{}}
	if err := s.get(ctx, s.cfg.Core, "persistentvolumeclaims", pod.Namespace, name, c.PVC); err != nil {
		return nil, fmt.Errorf("failed to fetch PVC from API server: %w", err)
	}
	if v.Ephemeral != nil && !metav1.IsControlledBy(c.PVC, pod) {
		return nil, fmt.Errorf("PVC %s/%s was not created for pod %s/%s (pod is not owner)",
			pod.Namespace, name, pod.Namespace, pod.Name)
	}
	if c.PVC.Status.Phase != corev1.ClaimBound || c.PVC.Spec.VolumeName == "" {
		return nil, fmt.Errorf("PVC %s/%s is not bound to a PersistentVolume yet: its phase is %q",
			pod.Namespace, name, c.PVC.Status.Phase)
	}
	if c.PV, err = s.volumeOf(ctx, c.PVC); err != nil {
		return nil, err
	}
	c.PVC.ManagedFields, c.PV.ManagedFields = nil, nil
	return c, nil
}

// volumeOf reads the PersistentVolume that a claim is bound to. A version from the API server's cache, which is no load
// for etcd, is enough if it is bound to this claim; but not while the claim is expanded, when its size matters.
func (s *Storage) volumeOf(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	name := claim.Spec.VolumeName
	if len(claim.Status.AllocatedResourceStatuses) == 0 && !pending(claim) {
		pv := &corev1.PersistentVolume{}
		err := s.read(ctx, s.cfg.Core, "persistentvolumes", "", name, pv, "0")
		if err == nil && boundTo(pv, claim) {
			return pv, nil
		}
	}
	pv := &corev1.PersistentVolume{}
	if err := s.get(ctx, s.cfg.Core, "persistentvolumes", "", name, pv); err != nil {
		return nil, fmt.Errorf("failed to get PersistentVolume %q of PVC %s/%s: %w", name, claim.Namespace, claim.Name, err)
	}
	if !boundTo(pv, claim) {
		return nil, fmt.Errorf("PersistentVolume %q is not bound to PVC %s/%s: its claimRef names another claim",
			name, claim.Namespace, claim.Name)
	}
	return pv, nil
}

func boundTo(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	return pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == claim.UID
}

// CheckAffinity returns an error for a volume that this node must not mount. One that is mounted stays so, whatever the
// labels of the node become.
func (s *Storage) CheckAffinity(pv *corev1.PersistentVolume) error {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return nil
	}
	match, err := corev1helpers.MatchNodeSelectorTerms(s.cfg.Node(), pv.Spec.NodeAffinity.Required)
	if err == nil && !match {
		err = errors.New("no matching NodeSelectorTerms")
	}
	if err != nil {
		return fmt.Errorf("MountVolume.NodeAffinity check failed for volume %q : %w", pv.Name, err)
	}
	return nil
}

// Secret reads a secret that a volume refers to. Its values are never logged.
func (s *Storage) Secret(ctx context.Context, namespace, name string) (map[string]string, error) {
	got := &corev1.Secret{}
	if err := s.get(ctx, s.cfg.Core, "secrets", namespace, name, got); err != nil {
		return nil, fmt.Errorf("get secret %s/%s of the volume: %w", namespace, name, err)
	}
	values := make(map[string]string, len(got.Data))
	for k, v := range got.Data {
		values[k] = string(v)
	}
	return values, nil
}
