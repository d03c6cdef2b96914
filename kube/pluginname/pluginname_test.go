package pluginname_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/kube/pluginname"
)

func TestOf(t *testing.T) {
	for want, source := range map[string]corev1.VolumeSource{
		"kubernetes.io/configmap":    {ConfigMap: &corev1.ConfigMapVolumeSource{}},
		"kubernetes.io/csi":          {PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}},
		"kubernetes.io/downward-api": {DownwardAPI: &corev1.DownwardAPIVolumeSource{}},
		"kubernetes.io/empty-dir":    {EmptyDir: &corev1.EmptyDirVolumeSource{}},
		"kubernetes.io/git-repo":     {GitRepo: &corev1.GitRepoVolumeSource{}},
		"kubernetes.io/host-path":    {HostPath: &corev1.HostPathVolumeSource{}},
		"kubernetes.io/image":        {Image: &corev1.ImageVolumeSource{}},
		"kubernetes.io/iscsi":        {ISCSI: &corev1.ISCSIVolumeSource{}},
		"kubernetes.io/nfs":          {NFS: &corev1.NFSVolumeSource{}},
		"kubernetes.io/projected":    {Projected: &corev1.ProjectedVolumeSource{}},
		"kubernetes.io/secret":       {Secret: &corev1.SecretVolumeSource{}},
	} {
		if got := pluginname.Of(&corev1.Volume{VolumeSource: source}); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestDrivers checks how metrics name the plugins of drivers and of PersistentVolumes.
func TestDrivers(t *testing.T) {
	for want, s := range map[string]corev1.PersistentVolumeSource{
		"kubernetes.io/csi:d":        {CSI: &corev1.CSIPersistentVolumeSource{Driver: "d"}},
		"kubernetes.io/host-path":    {HostPath: &corev1.HostPathVolumeSource{}},
		"kubernetes.io/iscsi":        {ISCSI: &corev1.ISCSIPersistentVolumeSource{}},
		"kubernetes.io/local-volume": {Local: &corev1.LocalVolumeSource{}},
		"kubernetes.io/nfs":          {NFS: &corev1.NFSVolumeSource{}},
	} {
		pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: s}}
		if got := pluginname.OfPersistent(pv); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	for driver, want := range map[string]string{pluginname.ISCSI: pluginname.ISCSI, "": pluginname.CSI} {
		if got := pluginname.OfDriver(driver); got != want {
			t.Errorf("driver %q: got %s, want %s", driver, got, want)
		}
	}
}

func TestDirectory(t *testing.T) {
	const dir = "kubernetes.io~empty-dir"
	if got := pluginname.Directory(pluginname.EmptyDir); got != dir {
		t.Errorf("directory: got %s, want %s", got, dir)
	}
	if got := pluginname.FromDirectory(dir); got != pluginname.EmptyDir {
		t.Errorf("plugin of %s: got %s, want %s", dir, got, pluginname.EmptyDir)
	}
}
