package usage

import (
	"context"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	api "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// fileSystem is how full a file system is.
type fileSystem struct {
	at                             time.Time
	capacity, available, used      uint64
	inodes, inodesFree, inodesUsed uint64
	known                          bool
	abnormal                       *bool // what a driver says of its volume's health, if it does
}

func readFileSystem(path string) fileSystem {
	s, err := sizeOf(path)
	if err != nil {
		return fileSystem{}
	}
	block := uint64(s.Bsize)
	return fileSystem{at: time.Now(), known: true, capacity: s.Blocks * block, available: s.Bavail * block,
		used: (s.Blocks - s.Bfree) * block, inodes: s.Files, inodesFree: s.Ffree, inodesUsed: s.Files - s.Ffree}
}

// holding is the file system as it is told for something on it, of which bytes and inodes are the own share.
func (f fileSystem) holding(bytes, inodes uint64) fileSystem {
	f.used, f.inodesUsed = bytes, inodes
	return f
}

func (f fileSystem) stats() *api.FsStats {
	if !f.known {
		return nil
	}
	return &api.FsStats{Time: metav1.NewTime(f.at), CapacityBytes: &f.capacity, AvailableBytes: &f.available, UsedBytes: &f.used,
		Inodes: &f.inodes, InodesFree: &f.inodesFree, InodesUsed: &f.inodesUsed}
}

// fileSystems are those of the node, and what the containers have written to their own layer.
type fileSystems struct {
	root, image, container fileSystem
	// layers is the writable layer by container ID.
	layers map[string]*runtimeapi.FilesystemUsage
}

// fileSystems asks the runtime where images and containers lie and how large they are. What it does not answer is left out.
func (c *Collector) fileSystems(ctx context.Context) fileSystems {
	f := fileSystems{root: readFileSystem(c.cfg.RootDir), layers: map[string]*runtimeapi.FilesystemUsage{}}
	info, err := c.cfg.Runtime.ImageFsInfo(ctx)
	if err == nil {
		f.image = ofRuntime(info.GetImageFilesystems())
		if f.container = ofRuntime(info.GetContainerFilesystems()); !f.container.known {
			f.container = f.image // this runtime keeps both in one place
		}
	}
	all, err := c.cfg.Runtime.ListContainerStats(ctx)
	if err == nil {
		for _, one := range all {
			f.layers[one.GetAttributes().GetId()] = one.WritableLayer
		}
	}
	return f
}

func ofRuntime(all []*runtimeapi.FilesystemUsage) fileSystem {
	if len(all) == 0 || all[0].GetFsId().GetMountpoint() == "" {
		return fileSystem{}
	}
	f := readFileSystem(all[0].FsId.Mountpoint)
	return f.holding(all[0].GetUsedBytes().GetValue(), all[0].GetInodesUsed().GetValue())
}

// localPlugins are the directories of volumes that are plain directories below the pod's, and count as its ephemeral storage.
func localPlugin(v *corev1.Volume) string {
	switch {
	case v.EmptyDir != nil:
		return "kubernetes.io~empty-dir"
	case v.ConfigMap != nil:
		return "kubernetes.io~configmap"
	case v.Secret != nil:
		return "kubernetes.io~secret"
	case v.DownwardAPI != nil:
		return "kubernetes.io~downward-api"
	case v.Projected != nil:
		return "kubernetes.io~projected"
	}
	return ""
}

// inMemory: the volume is a tmpfs, which counts as the memory of the pod.
func inMemory(v *corev1.Volume) bool {
	return v.Secret != nil || v.Projected != nil ||
		v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumDefault
}

func (c *Collector) volumePlace(p *corev1.Pod, v *corev1.Volume) place {
	return place{c.cfg.PodsDir, filepath.Join(string(p.UID), "volumes", localPlugin(v), v.Name)}
}

// places are all directories of the pods that must be walked to know their size.
func (c *Collector) places(pods []podUse) (all []place) {
	for i := range pods {
		p := &pods[i]
		for j := range p.Spec.Volumes {
			if v := &p.Spec.Volumes[j]; localPlugin(v) != "" {
				all = append(all, c.volumePlace(p.Pod.Pod, v))
			}
		}
		for j := range p.containers {
			all = append(all, c.logPlace(p.Pod.Pod, p.containers[j].name))
		}
	}
	return all
}

// addStorage adds what a pod takes on disks.
func (c *Collector) addStorage(out *api.PodStats, p *podUse, f fileSystems, sizes map[place]size) {
	var bytes, inodes uint64
	add := func(b, i uint64) { bytes, inodes = bytes+b, inodes+i }
	for i := range p.containers {
		one, s := &p.containers[i], &out.Containers[i]
		s.Rootfs = f.container.stats()
		if layer := f.layers[one.id]; layer != nil {
			used, files := layer.GetUsedBytes().GetValue(), layer.GetInodesUsed().GetValue()
			s.Rootfs = f.container.holding(used, files).stats()
			add(used, files)
		}
		if logs, ok := sizes[c.logPlace(p.Pod.Pod, one.name)]; ok {
			files := less(logs.inodes, 1) // the directory is the node's
			s.Logs = f.root.holding(logs.bytes, files).stats()
			add(logs.bytes, files)
		}
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if m, ok := p.Volumes[v.Name]; ok {
			c.addMounted(out, v, m)
			continue
		}
		s, ok := sizes[c.volumePlace(p.Pod.Pod, v)]
		if localPlugin(v) == "" || !ok {
			continue
		}
		at := f.root
		if inMemory(v) {
			at = readFileSystem(filepath.Join(c.cfg.PodsDir, c.volumePlace(p.Pod.Pod, v).below))
		} else {
			add(s.bytes, s.inodes)
		}
		at = at.holding(s.bytes, s.inodes)
		at.at = s.at
		if told := at.stats(); told != nil {
			out.VolumeStats = append(out.VolumeStats, api.VolumeStats{Name: v.Name, FsStats: *told})
		}
	}
	out.EphemeralStorage = f.root.holding(bytes, inodes).stats()
}

// addMounted adds a volume that is a file system of its own.
func (c *Collector) addMounted(out *api.PodStats, v *corev1.Volume, m Volume) {
	known := c.far.read(m)
	told := known.stats()
	if told == nil {
		return
	}
	s := api.VolumeStats{Name: v.Name, FsStats: *told}
	if known.abnormal != nil {
		s.VolumeHealthStats = &api.VolumeHealthStats{Abnormal: *known.abnormal}
	}
	if m.Claim != "" {
		s.PVCRef = &api.PVCReference{Name: m.Claim, Namespace: out.PodRef.Namespace}
	}
	out.VolumeStats = append(out.VolumeStats, s)
}
