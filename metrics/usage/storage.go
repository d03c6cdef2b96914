package usage

import (
	"cmp"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	api "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/nodelet/nodelet/host/machine"
	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/kube/poddir"
)

// fileSystem is the usage of a file system, as known at a time.
type fileSystem struct {
	Figures
	at    time.Time
	known bool
}

func readFileSystem(path string) fileSystem {
	s, err := machine.ReadFileSystem(path)
	if err != nil {
		return fileSystem{}
	}
	return nowKnown(Figures{
		Capacity:   s.Size,
		Available:  s.Available,
		Used:       s.Size - s.Free,
		Inodes:     s.Inodes,
		InodesFree: s.InodesFree,
		InodesUsed: s.Inodes - s.InodesFree,
	})
}

func nowKnown(f Figures) fileSystem { return fileSystem{Figures: f, at: time.Now(), known: true} }

// readDevice returns the size of a device. What of it is used is not known.
func readDevice(path string) fileSystem {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return fileSystem{}
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return fileSystem{}
	}
	return nowKnown(Figures{Capacity: uint64(size)})
}

// holding returns f with a as the used bytes and inodes.
func (f fileSystem) holding(a Amount) fileSystem {
	f.Used, f.InodesUsed = a.Bytes, a.Inodes
	return f
}

// merge adds what another pod sees of the same file system: the newer figures count, and an unhealthy state.
func (f *fileSystem) merge(other fileSystem) {
	abnormal := f.Abnormal
	if abnormal == nil || other.Abnormal != nil && *other.Abnormal {
		abnormal = other.Abnormal
	}
	if other.at.After(f.at) {
		*f = other
	}
	f.Abnormal = abnormal
}

func (f fileSystem) stats() *api.FsStats {
	if !f.known {
		return nil
	}
	return &api.FsStats{
		Time:           metav1.NewTime(f.at),
		CapacityBytes:  &f.Capacity,
		AvailableBytes: &f.Available,
		UsedBytes:      &f.Used,
		Inodes:         &f.Inodes,
		InodesFree:     &f.InodesFree,
		InodesUsed:     &f.InodesUsed,
	}
}

// fileSystems has the file systems of the node and the writable layers of the containers.
type fileSystems struct {
	root, image, container fileSystem
	// layers has the writable layers by container ID.
	layers map[string]Amount
}

// fileSystems asks the runtime for the locations and sizes of images and containers. Values that the runtime does not
// return are missing.
func (c *Collector) fileSystems(ctx context.Context) fileSystems {
	f := fileSystems{root: readFileSystem(c.cfg.RootDir)}
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	info, err := c.cfg.Runtime.ImageFsInfo(ctx)
	if err == nil {
		f.image = ofRuntime(info.GetImageFilesystems())
		if f.container = ofRuntime(info.GetContainerFilesystems()); !f.container.known {
			f.container = f.image // this runtime stores both on the same file system
		}
	}
	var err2 error
	f.layers, err2 = c.allLayers(ctx)
	if err := cmp.Or(err, err2); err != nil {
		c.cfg.Log.Warn("the usage of images or writable layers is missing", "err", err)
	}
	return f
}

func ofRuntime(all []*runtimeapi.FilesystemUsage) fileSystem {
	if len(all) == 0 || all[0].GetFsId().GetMountpoint() == "" {
		return fileSystem{}
	}
	f := readFileSystem(all[0].FsId.Mountpoint)
	return f.holding(amountOf(all[0]))
}

func amountOf(u *runtimeapi.FilesystemUsage) Amount {
	return Amount{Bytes: u.GetUsedBytes().GetValue(), Inodes: u.GetInodesUsed().GetValue()}
}

// isLocal reports whether a volume is a plain directory of the pod, which counts as its ephemeral storage.
func isLocal(v *corev1.Volume) bool {
	return v.EmptyDir != nil || v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}

// inMemory reports whether the volume is a tmpfs, which counts as memory of the pod.
func inMemory(v *corev1.Volume) bool {
	return slices.Contains(pluginname.InMemory, pluginname.Of(v)) ||
		v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumDefault
}

func (c *Collector) volumePlace(p *corev1.Pod, v *corev1.Volume) place {
	return place{
		base:    c.cfg.PodsDir,
		below:   filepath.Join(string(p.UID), poddir.Of(poddir.Volumes, pluginname.Of(v), v.Name)),
		mounted: inMemory(v),
	}
}

// sizesOf returns the sizes of all places that count for the usage of the pods.
func (c *Collector) sizesOf(ctx context.Context, pods []podUse) map[place]size {
	var all []place
	for i := range pods {
		p := pods[i].Pod.Pod
		local := c.parts(p)
		all = append(all, local.places()...)
		for j := range p.Spec.Volumes {
			if v := &p.Spec.Volumes[j]; isLocal(v) && inMemory(v) {
				all = append(all, c.volumePlace(p, v))
			}
		}
	}
	return c.disks.sizesOf(ctx, all, sizesTimeout)
}

// addStorage adds the disk usage of a pod.
func (c *Collector) addStorage(out *api.PodStats, p *podUse, f fileSystems, sizes map[place]size) {
	parts := c.parts(p.Pod.Pod)
	local := parts.local(sizes)
	total := local.directory()
	for i := range p.containers {
		one, s := &p.containers[i], &out.Containers[i]
		used, known := f.layers[one.id]
		total.add(used)
		s.Rootfs = f.container.holding(used).stats()
		if s.Rootfs != nil && !known {
			s.Rootfs.UsedBytes, s.Rootfs.InodesUsed = nil, nil
		}
		if logs, ok := local.Logs[one.name]; ok {
			logs.Inodes = less(logs.Inodes, 1) // the directory itself belongs to the node
			s.Logs = f.root.holding(logs).stats()
		}
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if m, ok := p.Volumes[v.Name]; ok {
			c.addMounted(out, v, m)
			continue
		}
		at := c.volumePlace(p.Pod.Pod, v)
		s := sizes[at]
		if !isLocal(v) || !s.known {
			continue
		}
		on := f.root
		if inMemory(v) {
			on = readFileSystem(filepath.Join(at.base, at.below))
		}
		on = on.holding(s.Amount)
		on.at = s.at
		if stats := on.stats(); stats != nil {
			out.VolumeStats = append(out.VolumeStats, api.VolumeStats{Name: v.Name, FsStats: *stats})
		}
	}
	out.EphemeralStorage = f.root.holding(total).stats()
}

// addMounted adds a volume that is a separate file system.
func (c *Collector) addMounted(out *api.PodStats, v *corev1.Volume, m Volume) {
	stats := c.far.read(m).stats()
	if stats == nil {
		return
	}
	s := api.VolumeStats{Name: v.Name, FsStats: *stats}
	if m.Claim != "" {
		s.PVCRef = &api.PVCReference{Name: m.Claim, Namespace: out.PodRef.Namespace}
	}
	out.VolumeStats = append(out.VolumeStats, s)
}
