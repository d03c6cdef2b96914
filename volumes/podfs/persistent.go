package podfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/host/mounts"
	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/kube/poddir"
	"github.com/nodelet/nodelet/volumes/block"
)

// gidAnnotation names a group of which all users of a PersistentVolume become members.
const gidAnnotation = "pv.beta.kubernetes.io/gid"

// Persistent names a PersistentVolume, other than a CSI driver's, that a pod uses.
type Persistent struct {
	Pod      *corev1.Pod
	PV       *corev1.PersistentVolume
	ReadOnly bool // the pod asks for no more; readOnly of the PV's source says nothing, as with the kubelet
	Block    bool // the pod gets the device itself
	Grow     bool // its claim has been expanded: what is easier before the mount may be done then
}

// MountPersistent sets a PersistentVolume up for a pod: local, hostPath, nfs.
func (v *FS) MountPersistent(ctx context.Context, p Persistent) (Mounted, error) {
	if p.PV.Spec.HostPath != nil && !p.Block && strings.Join(MountOptions(p.PV), "") != "" { // nothing is mounted
		return Mounted{}, fmt.Errorf("MountVolume.MountOptionSupport check failed for volume %q : "+
			"mount options are not supported for this volume type", p.PV.Name)
	}
	m, err := v.mountPersistent(ctx, p)
	if err != nil {
		return Mounted{}, fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", p.PV.Name, err)
	}
	m.Name, m.ReadOnly = p.PV.Name, m.ReadOnly || p.ReadOnly
	m.SELinuxRelabel = m.SELinuxRelabel && !m.ReadOnly
	m.ExtraGroup = ExtraGroup(p.PV)
	return m, nil
}

func (v *FS) mountPersistent(ctx context.Context, p Persistent) (Mounted, error) {
	if err := errors.Join(poddir.CheckName("pod UID", string(p.Pod.UID)),
		poddir.CheckName("PersistentVolume", p.PV.Name)); err != nil {
		return Mounted{}, err
	}
	if p.PV.Spec.Local != nil && OnePod(p.PV) {
		if err := v.reserve(p.Pod.UID, OnDisk{pluginname.Local, p.PV.Name}); err != nil {
			return Mounted{}, err
		}
	}
	switch s := p.PV.Spec.PersistentVolumeSource; {
	case s.Local != nil && p.Block:
		return v.mountDevice(ctx, p.Pod.UID, p.PV.Name, s.Local.Path)
	case s.Local != nil:
		return v.mountLocal(ctx, p, s.Local)
	case p.Block:
		return Mounted{}, fmt.Errorf("kind %s cannot be used as a block device", fieldSet(s))
	case s.HostPath != nil:
		return v.mountHostPath(ctx, s.HostPath)
	case s.NFS != nil:
		return v.mountNFS(ctx, p.Pod, p.PV.Name, s.NFS, MountOptions(p.PV), p.ReadOnly)
	default:
		return Mounted{}, unsupported(s)
	}
}

// OnePod reports whether only one pod at a time may use a PersistentVolume. Of several access modes it is not known
// which one a pod means.
func OnePod(pv *corev1.PersistentVolume) bool {
	return slices.Equal(pv.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod})
}

// ExtraGroup returns the group of which users of a PersistentVolume become members, if it names one.
func ExtraGroup(pv *corev1.PersistentVolume) *int64 {
	gid, err := strconv.ParseInt(pv.Annotations[gidAnnotation], 10, 64)
	if err != nil || gid < 0 {
		return nil
	}
	return &gid
}

// MountOptions returns the mount options of a PersistentVolume. The annotation, which is older, takes precedence. CSI
// drivers do not get the options of the annotation, as with the kubelet.
func MountOptions(pv *corev1.PersistentVolume) []string {
	if text, ok := pv.Annotations[corev1.MountOptionAnnotation]; ok {
		return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
	}
	return pv.Spec.MountOptions
}

// makePoint makes a volume's directory, and calls mount if nothing is mounted on it: once, also if several containers
// of the pod need the volume at the same moment. It does not open what is mounted: that does not return if its server
// is gone.
func (v *FS) makePoint(ctx context.Context, pod *os.File, on OnDisk, mount func(dir *os.File) error) error {
	unlock, err := v.mounting.Lock(ctx, filepath.Join(pod.Name(), on.path()))
	if err != nil {
		return err
	}
	defer unlock()
	plugin, err := makeDir(pod, filepath.Dir(on.path()), privateDir)
	if err != nil {
		return err
	}
	defer plugin.Close()
	if mounts.On(plugin, on.Name) {
		return nil
	}
	dir, err := makeDir(plugin, on.Name, privateDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return mount(dir)
}

// mountNFS mounts an export with the tools of the node: they know the versions, the security flavours and the helpers
// that the file system needs.
func (v *FS) mountNFS(ctx context.Context, owner *corev1.Pod, name string, s *corev1.NFSVolumeSource,
	options []string, readOnly bool) (Mounted, error) {
	pod, err := v.makePod(owner.UID)
	if err != nil {
		return Mounted{}, err
	}
	defer pod.Close()
	on := OnDisk{pluginname.NFS, name}
	path := v.hostPath(owner.UID, on)
	err = v.makePoint(ctx, pod, on, func(*os.File) error {
		if readOnly {
			options = append([]string{"ro"}, options...)
		}
		return needsHelper(block.Mount(ctx, "nfs", nfsSource(s), path, options), "/sbin/mount.nfs")
	})
	if err != nil {
		return Mounted{}, err
	}
	return Mounted{HostPath: path, MountPoint: true, ReadOnly: readOnly}, nil
}

// needsHelper adds advice to the error of mount for a missing helper for nfs, which is hard to understand.
func needsHelper(err error, helper string) error {
	if _, missing := os.Stat(helper); err == nil || !errors.Is(missing, os.ErrNotExist) {
		return err
	}
	return fmt.Errorf("%w; there is no %s on this node: install nfs-common (nfs-utils)", err, helper)
}

// nfsSource returns an export as mount expects it: an IPv6 address stands in brackets.
func nfsSource(s *corev1.NFSVolumeSource) string {
	server := s.Server
	if strings.Contains(server, ":") && !strings.HasPrefix(server, "[") {
		server = "[" + server + "]"
	}
	return server + ":" + s.Path
}

// Own applies the pod's fsGroup to a mounted volume. hostPath is below the pod's directory. It can be given up while
// the server of the volume does not answer.
func (v *FS) Own(ctx context.Context, pod *corev1.Pod, hostPath string) error {
	if err := v.answers(ctx, hostPath); err != nil {
		return fmt.Errorf("give volume to the pod's fsGroup: the volume does not answer: %w", err)
	}
	dir, err := v.openBelow(hostPath)
	if err != nil {
		return err
	}
	defer dir.Close()
	return v.ownerOf(pod, false).apply(ctx, dir)
}
