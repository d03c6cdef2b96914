package manifest

import (
	corev1 "k8s.io/api/core/v1"
)

// tokenExpirySeconds is the default lifetime of a projected service account token.
const tokenExpirySeconds = 3600

func defaultVolume(v *corev1.VolumeSource) {
	if *v == (corev1.VolumeSource{}) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	if v.Image != nil {
		orElse(&v.Image.PullPolicy, pullPolicyFor(v.Image.Reference))
	}
	if v.HostPath != nil {
		def(&v.HostPath.Type, corev1.HostPathUnset)
	}
	if v.Secret != nil {
		def(&v.Secret.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
	}
	if v.ConfigMap != nil {
		def(&v.ConfigMap.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
	}
	if v.DownwardAPI != nil {
		def(&v.DownwardAPI.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
		defaultDownwardFiles(v.DownwardAPI.Items)
	}
	if v.Projected != nil {
		defaultProjected(v.Projected)
	}
	if v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
		claim := &v.Ephemeral.VolumeClaimTemplate.Spec
		def(&claim.VolumeMode, corev1.PersistentVolumeFilesystem)
		roundUp(claim.Resources.Limits)
		roundUp(claim.Resources.Requests)
	}
	defaultNetworkVolume(v)
}

func defaultProjected(p *corev1.ProjectedVolumeSource) {
	def(&p.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
	for _, s := range p.Sources {
		if s.DownwardAPI != nil {
			defaultDownwardFiles(s.DownwardAPI.Items)
		}
		if s.ServiceAccountToken != nil {
			def(&s.ServiceAccountToken.ExpirationSeconds, int64(tokenExpirySeconds))
		}
	}
}

func defaultDownwardFiles(files []corev1.DownwardAPIVolumeFile) {
	for i := range files {
		defaultFieldRef(files[i].FieldRef)
	}
}

// defaultNetworkVolume sets the defaults of the in-tree network volumes.
func defaultNetworkVolume(v *corev1.VolumeSource) {
	if v.ISCSI != nil {
		orElse(&v.ISCSI.ISCSIInterface, "default")
	}
	if v.RBD != nil {
		orElse(&v.RBD.RBDPool, "rbd")
		orElse(&v.RBD.RadosUser, "admin")
		orElse(&v.RBD.Keyring, "/etc/ceph/keyring")
	}
	if v.AzureDisk != nil {
		def(&v.AzureDisk.CachingMode, corev1.AzureDataDiskCachingReadWrite)
		def(&v.AzureDisk.FSType, "ext4")
		def(&v.AzureDisk.ReadOnly, false)
		def(&v.AzureDisk.Kind, corev1.AzureSharedBlobDisk)
	}
	if v.ScaleIO != nil {
		orElse(&v.ScaleIO.StorageMode, "ThinProvisioned")
		orElse(&v.ScaleIO.FSType, "xfs")
	}
}
