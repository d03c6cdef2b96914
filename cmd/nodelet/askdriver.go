package main

import (
	"context"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/metrics/usage"
)

// statsVolumes are the volumes of a pod that are file systems of their own.
func (n *nodelet) statsVolumes(s *agent.Counted) map[string]usage.Volume {
	var all map[string]usage.Volume
	for i := range s.Pod.Spec.Volumes {
		v := &s.Pod.Spec.Volumes[i]
		dir, mounted := s.Mounted[v.Name]
		own, ofDriver := ownFileSystem(dir)
		if !mounted || !own {
			continue
		}
		told := usage.Volume{Dir: dir}
		if ofDriver {
			told.Ask = n.askDriver(s.Pod, v.Name, filepath.Base(filepath.Dir(dir)))
		}
		switch {
		case v.PersistentVolumeClaim != nil:
			told.Claim = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			told.Claim = s.Pod.Name + "-" + v.Name
		}
		if all == nil {
			all = map[string]usage.Volume{}
		}
		all[v.Name] = told
	}
	return all
}

// ownFileSystem tells by a volume's path whether it is a file system of its own, and whether a CSI driver has mounted it, who can be asked
// about it. A raw device lies elsewhere.
func ownFileSystem(path string) (own, ofDriver bool) {
	dir := filepath.Dir(path)
	switch filepath.Base(dir) {
	case "kubernetes.io~iscsi", "kubernetes.io~nfs", "kubernetes.io~local-volume":
		return true, false
	}
	ofDriver = filepath.Base(path) == "mount" && filepath.Base(filepath.Dir(dir)) == "kubernetes.io~csi"
	return ofDriver, ofDriver
}

// askDriver asks the driver of a volume for its figures. directory is the volume's name on the disk.
func (n *nodelet) askDriver(pod *corev1.Pod, volume, directory string) func(context.Context) (usage.Figures, bool) {
	return func(ctx context.Context) (f usage.Figures, ok bool) {
		told, ok, err := n.csi.Stats(ctx, pod.UID, directory)
		if err != nil || !ok {
			return f, false
		}
		f.Abnormal = n.volumeHealth(pod, volume, told.Condition)
		if told.Bytes.Total == nil {
			return f, false
		}
		number := func(v *int64) uint64 {
			if v == nil {
				return 0
			}
			return uint64(max(0, *v))
		}
		b, i := told.Bytes, told.Inodes
		f.Capacity, f.Available, f.Used = number(b.Total), number(b.Available), number(b.Used)
		f.Inodes, f.InodesFree, f.InodesUsed = number(i.Total), number(i.Available), number(i.Used)
		return f, true
	}
}

// volumeHealth tells people of a volume that its driver calls abnormal; nil where nothing is known.
func (n *nodelet) volumeHealth(pod *corev1.Pod, volume string, c *csi.Condition) *bool {
	if c == nil {
		return nil
	}
	if c.Abnormal {
		n.podEvent(pod, corev1.EventTypeWarning, "VolumeConditionAbnormal", fmt.Sprintf("Volume %s: %s", volume, c.Message))
	}
	return &c.Abnormal
}
