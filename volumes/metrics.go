package volumes

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/kube/pluginname"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Metrics counts what is done with volumes.
type Metrics interface {
	// VolumeOperation counts an operation on a volume. Names and plugins are those of the kubelet's metric
	// storage_operation_duration_seconds.
	VolumeOperation(name, plugin string, took time.Duration, err error)
	// CSICalled counts a call to a CSI driver. method is that of the Node service.
	CSICalled(driver, method string, took time.Duration, err error)
	// SELinux counts a volume whose driver can mount it with a label. If applies is false, volumes of its access mode are
	// not mounted with a label, and the result is a warning only.
	SELinux(result SELinuxResult, driver, accessMode string, applies bool)
}

// waitForAttachment is an operation before those of mounting, as with the kubelet.
const waitForAttachment = "verify_controller_attached_volume"

// mountOf returns the name of the operation that mounts a volume, or makes it available as a device.
func mountOf(block bool) string {
	if block {
		return "map_volume"
	}
	return "volume_mount"
}

// unmountOf returns the name of the operation that takes a volume away from a pod.
func unmountOf(block bool) string {
	if block {
		return "unmap_volume"
	}
	return "volume_unmount"
}

// count counts an operation that began at a time, unless it was cancelled. It is deferred, and reads the result in err.
func (m *Manager) count(ctx context.Context, operation, plugin string, began time.Time, err *error) {
	if *err == nil || ctx.Err() == nil {
		m.cfg.Metrics.VolumeOperation(operation, plugin, time.Since(began), *err)
	}
}

// Plugin returns the plugin of a pod's volume, as metrics name it. mounted is where it is mounted, or its device. The
// plugin of a claim is known only while it is mounted: its path shows it.
func (m *Manager) Plugin(pod *corev1.Pod, v *corev1.Volume, mounted string) string {
	_, device := podutil.VolumeUse(&pod.Spec, v.Name)
	own, directory := m.ownStorage(pod.UID, mounted, device)
	plugin := pluginname.Of(v)
	switch {
	case v.CSI != nil:
		return pluginname.OfDriver(v.CSI.Driver)
	case directory != "":
		driver, _ := m.csi.Driver(pod.UID, directory)
		return pluginname.OfDriver(driver)
	case mounted == "" || plugin != pluginname.CSI:
		return plugin
	case device && strings.HasPrefix(mounted, filepath.Join(m.cfg.Root, "plugins", pluginname.ISCSI)+"/"):
		return pluginname.ISCSI
	case device:
		return pluginname.Local
	case own:
		return pluginname.FromDirectory(filepath.Base(filepath.Dir(mounted)))
	}
	return pluginname.HostPath
}
