package volumes

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/kube/pluginname"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/poddir"
	"github.com/nodelet/nodelet/kube/storage"
	"github.com/nodelet/nodelet/metrics/usage"
)

// Usage returns the volumes of a pod that are file systems or devices of their own. mounted is where they are mounted,
// or the device, by name.
func (m *Manager) Usage(pod *corev1.Pod, mounted map[string]string) map[string]usage.Volume {
	all := map[string]usage.Volume{}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		path := mounted[v.Name]
		_, device := podutil.VolumeUse(&pod.Spec, v.Name)
		own, directory := m.ownStorage(pod.UID, path, device)
		if !own {
			continue
		}
		u := usage.Volume{Path: path, Device: device, Claim: storage.ClaimName(pod, v)}
		if directory != "" {
			u.Ask = func(ctx context.Context) (usage.Figures, bool) { return m.figures(ctx, pod, v.Name, directory) }
		}
		all[v.Name] = u
	}
	return all
}

// ownFileSystems are the plugins other than CSI whose volumes are file systems of their own.
var ownFileSystems = []string{pluginname.ISCSI, pluginname.Local, pluginname.NFS}

// ownStorage reports by the path of a pod's volume whether it is a file system or a device of its own. directory is the
// name of its directory if it is that of a CSI driver, which knows its usage.
func (m *Manager) ownStorage(pod types.UID, path string, device bool) (own bool, directory string) {
	parent := filepath.Dir(path)
	directory = filepath.Base(parent)
	if path == filepath.Join(m.cfg.Root, csi.Target(pod, directory, device)) {
		return true, directory
	}
	if device {
		return path != "", ""
	}
	dir := filepath.Join(m.cfg.Root, poddir.Pods, string(pod))
	return slices.ContainsFunc(ownFileSystems, func(plugin string) bool {
		return parent == filepath.Join(dir, poddir.Of(poddir.Volumes, plugin, ""))
	}), ""
}

// figures asks the driver of a volume for its usage. directory is the name of the volume's directory. ok is false if
// the driver does not know it.
func (m *Manager) figures(ctx context.Context, pod *corev1.Pod, volume, directory string) (f usage.Figures, ok bool) {
	s, ok, err := m.csi.Stats(ctx, pod.UID, directory)
	if err != nil || !ok {
		return f, false
	}
	f.Abnormal = m.abnormal(pod, volume, s.Condition)
	if s.Bytes.Total == nil {
		return f, false
	}
	f.Capacity = number(s.Bytes.Total)
	f.Available, f.Used = number(s.Bytes.Available), number(s.Bytes.Used)
	f.Inodes = number(s.Inodes.Total)
	f.InodesFree, f.InodesUsed = number(s.Inodes.Available), number(s.Inodes.Used)
	return f, true
}

func number(v *int64) uint64 {
	if v == nil {
		return 0
	}
	return uint64(max(0, *v))
}

// abnormal records an event about a volume whose driver reports it as abnormal. It returns nil if nothing is known.
func (m *Manager) abnormal(pod *corev1.Pod, volume string, c *csi.Condition) *bool {
	if c == nil {
		return nil
	}
	if c.Abnormal {
		m.cfg.Event(pod, corev1.EventTypeWarning, "VolumeConditionAbnormal",
			fmt.Sprintf("Volume %s: %s", volume, c.Message))
	}
	return &c.Abnormal
}
