// Package pluginname has the names that Kubernetes gives to the plugins of volumes, which metrics, paths and the Node's
// status show, and to the attachments of volumes.
//
// It owns no volume and reads nothing. volumes and podfs, csi, kube/poddir, kube/storage, agent/instruments and
// metrics/usage call it. A crash leaves nothing behind.
package pluginname

import (
	"crypto/sha256"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// The plugins of volumes.
const (
	ConfigMap   = "kubernetes.io/configmap"
	CSI         = "kubernetes.io/csi"
	DownwardAPI = "kubernetes.io/downward-api"
	EmptyDir    = "kubernetes.io/empty-dir"
	GitRepo     = "kubernetes.io/git-repo"
	HostPath    = "kubernetes.io/host-path"
	Image       = "kubernetes.io/image"
	ISCSI       = "kubernetes.io/iscsi"
	Local       = "kubernetes.io/local-volume"
	NFS         = "kubernetes.io/nfs"
	Projected   = "kubernetes.io/projected"
	Secret      = "kubernetes.io/secret"
)

// InMemory are the plugins all of whose volumes are in memory: secrets must not reach a disk.
var InMemory = []string{Secret, Projected, DownwardAPI}

// Of returns the plugin of a volume of a pod. The volume of a PersistentVolumeClaim counts as one of CSI.
func Of(v *corev1.Volume) string {
	switch {
	case v.ConfigMap != nil:
		return ConfigMap
	case v.DownwardAPI != nil:
		return DownwardAPI
	case v.EmptyDir != nil:
		return EmptyDir
	case v.GitRepo != nil:
		return GitRepo
	case v.HostPath != nil:
		return HostPath
	case v.Image != nil:
		return Image
	case v.ISCSI != nil:
		return ISCSI
	case v.NFS != nil:
		return NFS
	case v.Projected != nil:
		return Projected
	case v.Secret != nil:
		return Secret
	}
	return CSI
}

// OfDriver returns the plugin of the volumes of a driver, as metrics name it: kubernetes.io/csi:<driver> for a CSI
// driver, or without the end if it is not known.
func OfDriver(driver string) string {
	switch driver {
	case "":
		return CSI
	case ISCSI:
		return ISCSI
	}
	return CSI + ":" + driver
}

// OfPersistent returns the plugin of a PersistentVolume, as metrics name it.
func OfPersistent(pv *corev1.PersistentVolume) string {
	s := &pv.Spec
	switch {
	case s.CSI != nil:
		return OfDriver(s.CSI.Driver)
	case s.ISCSI != nil:
		return ISCSI
	case s.Local != nil:
		return Local
	}
	return Of(&corev1.Volume{VolumeSource: corev1.VolumeSource{HostPath: s.HostPath, NFS: s.NFS}})
}

// Attachment returns the name of the VolumeAttachment of a CSI volume on a node.
func Attachment(driver, handle, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

// Directory returns the name of a plugin's directory in the directory of a pod, such as kubernetes.io~secret.
func Directory(plugin string) string { return strings.ReplaceAll(plugin, "/", "~") }

// FromDirectory returns the plugin whose Directory has this name.
func FromDirectory(name string) string { return strings.ReplaceAll(name, "~", "/") }
