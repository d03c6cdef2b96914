package podfs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/internal/keylock"
	"github.com/nodelet/nodelet/kube/poddir"
)

// Config has the settings of an FS.
type Config struct {
	Root string // the agent's root directory, absolute; may itself be reached through symbolic links
	Log  *slog.Logger
}

// FS mounts volumes below the directory of the pods. It is safe for concurrent use.
type FS struct {
	PodDirs
	log     *slog.Logger
	started time.Time // of this run of the agent
	noswap  bool      // this kernel's tmpfs can be kept out of swap
	memory  int64     // bounds what pods with much in memory have there together
	writers chan struct{}
	onDisk  diskUse
	made    subpathDirs
	devices localDevices
	// filling are locks of pods whose volumes in memory are filled, by UID, and mounting those of mount points, by path.
	filling, mounting keylock.Keyed
	// reserving is held while a pod reserves a local volume.
	reserving sync.Mutex
	// serverTimeout is how long an unmount waits for a server of NFS.
	serverTimeout time.Duration
	// stat is os.Stat, and looking the calls of it for paths of the node.
	stat    func(path string) (fs.FileInfo, error)
	looking singleflight.Group
}

// New creates the directory of the pods and checks that the kernel has what this package needs: openat2 (Linux 5.6) and
// mount points in statx (Linux 5.8).
func New(cfg Config) (*FS, error) {
	if !filepath.IsAbs(cfg.Root) {
		return nil, fmt.Errorf("root directory %q must be an absolute path", cfg.Root)
	}
	dirs := PodDirs{filepath.Join(cfg.Root, poddir.Pods)}
	if err := os.MkdirAll(dirs.podsDir, 0o750); err != nil {
		return nil, fmt.Errorf("make pods directory: %w", err)
	}
	v := &FS{
		PodDirs: dirs,
		log:     cfg.Log,
		started: time.Now(),
		noswap:  tmpfsNoswap(),
		memory:  debug.SetMemoryLimit(-1) / memoryShare, // a negative value only reads
		writers: make(chan struct{}, writersPerCPU*runtime.NumCPU()),
		devices: newLocalDevices(cfg.Root),

		serverTimeout: time.Minute, // as the kubelet
		stat:          os.Stat,
	}
	if err := v.checkKernel(); err != nil {
		return nil, err
	}
	return v, nil
}

// Objects returns the API objects that volumes show. The error for a missing object satisfies
// apierrors.IsNotFound.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	// Token requests a new token of the pod's service account, bound to the pod. An empty audience means the API
	// server's own. It is called only if the token on disk is missing or due, so it needs no cache.
	Token(ctx context.Context, pod *corev1.Pod, audience string, expirationSeconds int64) (string, time.Time, error)
	// TrustBundles returns, as PEM, the ClusterTrustBundles that a source names. None is no error if the source names a
	// signer.
	TrustBundles(ctx context.Context, s *corev1.ClusterTrustBundleProjection) ([]string, error)
	// PodCertificate returns the certificate for a podCertificate source, with its key, and when to ask again. shown is
	// the certificate that the volume has now, nil if none can be read, and renew when it is to be renewed; zero: not
	// known.
	PodCertificate(ctx context.Context, pod *corev1.Pod, volume string, source int,
		shown *tls.Certificate, renew time.Time) (*tls.Certificate, time.Time, error)
}

// Request names one volume of one pod.
type Request struct {
	Pod         *corev1.Pod
	Volume      *corev1.Volume
	Allocatable corev1.ResourceList // the node's; the default of limits in resourceFieldRef and of the size of a tmpfs
	Now         time.Time           // the wall clock, which tokens are measured by
	Refresh     bool                // this run of the agent has mounted the volume before
}

// Mounted is a volume that containers can use.
type Mounted struct {
	// HostPath is what to mount into the container; empty for image volumes, which the runtime resolves.
	HostPath string
	// Device is the device of a volume with volumeMode Block, in place of HostPath.
	Device string
	// Name is the name of the volume's directory if it is not that of the pod's volume: the name of the PersistentVolume.
	Name string
	// ExtraGroup is a group of which users of a PersistentVolume become members.
	ExtraGroup *int64
	// ReadOnly: containers get no write access, whatever their volumeMount says.
	ReadOnly bool
	// MountPoint: something is mounted on HostPath. A container without that would write to the node's disk.
	MountPoint bool
	// SELinuxRelabel: the runtime may relabel the content.
	SELinuxRelabel bool
	// RefreshAt is when to call Mount again, because a token or certificate is due for renewal; zero: never.
	RefreshAt time.Time
}

// Mount sets a volume up, or refreshes its content: all files change at once, and only if the content differs. Errors
// are worded like the kubelet's FailedMount event and name the volume.
func (v *FS) Mount(ctx context.Context, r Request, objects Objects) (Mounted, error) {
	m, err := v.mount(ctx, r, objects)
	if err != nil {
		return Mounted{}, fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", r.Volume.Name, err)
	}
	return m, nil
}

func (v *FS) mount(ctx context.Context, r Request, objects Objects) (Mounted, error) {
	if err := ctx.Err(); err != nil {
		return Mounted{}, err
	}
	if err := errors.Join(poddir.CheckName("pod UID", string(r.Pod.UID)),
		poddir.CheckName("volume", r.Volume.Name)); err != nil {
		return Mounted{}, err
	}
	if err := supported(r.Volume.VolumeSource); err != nil {
		return Mounted{}, err
	}
	if External(r.Volume) {
		return Mounted{}, errors.New("the PersistentVolume or CSI driver behind it is needed to mount it")
	}
	switch s := r.Volume.VolumeSource; {
	case s.EmptyDir != nil:
		return v.mountEmptyDir(ctx, r, s.EmptyDir)
	case s.HostPath != nil:
		return v.mountHostPath(ctx, s.HostPath)
	case s.NFS != nil:
		return v.mountNFS(ctx, r.Pod, r.Volume.Name, s.NFS, nil, s.NFS.ReadOnly)
	case s.Image != nil:
		return Mounted{ReadOnly: true, SELinuxRelabel: true}, nil
	}
	return v.mountContent(ctx, r, objects) // supported left nothing else
}

// OnDisk is one directory below pods/<uid>/volumes or, of a hostPath volume, one below volume-subpaths.
type OnDisk struct {
	Plugin string // such as "kubernetes.io/secret"; those that this package cannot unmount are listed too
	Name   string // the name of the volume, or of the PersistentVolume
}

// path returns the path of the directory, relative to the pod's.
func (o OnDisk) path() string { return poddir.Of(poddir.Volumes, o.Plugin, o.Name) }
