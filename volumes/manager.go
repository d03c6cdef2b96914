package volumes

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/internal/keylock"
	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/kube/storage"
	"github.com/nodelet/nodelet/plugins"
	"github.com/nodelet/nodelet/volumes/iscsi"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// Values that callers share with podfs.
type (
	// Mounted is a volume that containers can use.
	Mounted = podfs.Mounted
	// OnDisk is a volume of a pod that is on the node.
	OnDisk = podfs.OnDisk
	// SubPath names a path within a volume of a pod.
	SubPath = podfs.SubPath
	// Objects returns the API objects that volumes show, such as ConfigMaps.
	Objects = podfs.Objects
)

// Config says where volumes are and which parts of the agent hear of them. The functions must not block.
type Config struct {
	Root     string // the agent's root directory, absolute
	NodeName string
	Log      *slog.Logger
	Pods     *podfs.FS
	// Cluster is the API server's view of volumes. Nil: this node has no API server.
	Cluster Cluster
	// Health asks CSI drivers for the condition of volumes in addition to their usage.
	Health bool
	// Metrics counts what is done.
	Metrics Metrics
	// Event and ClaimEvent record events about a pod and about a claim.
	Event      func(pod *corev1.Pod, eventType, reason, message string)
	ClaimEvent func(claim *corev1.PersistentVolumeClaim, eventType, reason, message string)
	// LimitExceeded receives a pod that cannot have a volume because the node has as many as a driver allows, and why. It
	// may block.
	LimitExceeded func(ctx context.Context, pod *corev1.Pod, message string)
	// InUse receives the volumes that must not be detached, each time they change.
	InUse func(names []corev1.UniqueVolumeName)
	// Wake receives the pods whose failed steps may succeed now.
	Wake func(pods []types.UID)
}

// Manager mounts and unmounts the volumes of pods. It is safe for concurrent use.
type Manager struct {
	cfg    Config
	csi    *csi.CSI
	tokens tokens
	// alone are locks of volumes: one step at a time gives the files of a volume to a group, or expands it.
	alone keylock.Keyed
}

// New reads the records of volumes that are on the node. Run starts the work.
func New(cfg Config) (*Manager, error) {
	node := iscsi.New(iscsi.Config{Dir: filepath.Join(cfg.Root, "plugins", pluginname.ISCSI), Log: cfg.Log})
	return newManager(cfg, csi.InTreeDriver{Plugin: pluginname.ISCSI, Node: node, Handle: iscsi.HandleOf})
}

func newManager(cfg Config, inTree csi.InTreeDriver) (*Manager, error) {
	if cfg.Cluster == nil {
		cfg.Cluster = noCluster{}
	}
	m := &Manager{cfg: cfg}
	c, err := csi.New(csi.Config{
		Root:     cfg.Root,
		NodeName: cfg.NodeName,
		Log:      cfg.Log,
		Wake:     cfg.Wake,
		Health:   cfg.Health,
		InTree:   []csi.InTreeDriver{inTree},
		Changed:  func() { cfg.InUse(m.csi.InUse()) },
		Called:   cfg.Metrics.CSICalled,
		Registered: func(ctx context.Context, d csi.DriverInfo) error {
			return cfg.Cluster.SetDriver(ctx, storage.NodeDriver(d))
		},
		Limits: cfg.Cluster.LimitPeriod,
		Gone: func(ctx context.Context, driver string) {
			if err := cfg.Cluster.RemoveDriver(ctx, driver); err != nil {
				cfg.Log.Warn("cannot remove a CSI driver from the CSINode", "driver", driver, "err", err)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	m.csi = c
	cfg.InUse(c.InUse())
	return m, nil
}

// Run takes down volumes that no pod uses, until ctx is done.
func (m *Manager) Run(ctx context.Context) { m.csi.Run(ctx) }

// Close ends a Manager on which Run was not called.
func (m *Manager) Close() error { return m.csi.Close() }

// Plugins returns the handler of CSI drivers that register.
func (m *Manager) Plugins() plugins.Handler { return m.csi }

// Pods returns the pods that have a directory or use a volume, including pods that no longer exist.
func (m *Manager) Pods() ([]types.UID, error) {
	dirs, err := m.cfg.Pods.Pods()
	return append(dirs, m.csi.Pods()...), err
}

// List returns the volumes of a pod that are on the node.
func (m *Manager) List(pod types.UID) ([]OnDisk, error) {
	all, err := m.cfg.Pods.List(pod)
	for _, name := range m.csi.Used(pod) {
		if !slices.ContainsFunc(all, func(v OnDisk) bool { return byDriver(v) && v.Name == name }) {
			all = append(all, OnDisk{Plugin: pluginname.CSI, Name: name})
		}
	}
	return all, err
}

// Unmount takes down a volume that List returned. The containers of the pod must have ended.
func (m *Manager) Unmount(ctx context.Context, pod types.UID, v OnDisk) (err error) {
	plugin, device := v.Plugin, false
	if driver, block := m.csi.Driver(pod, v.Name); byDriver(v) && driver != "" {
		plugin, device = pluginname.OfDriver(driver), block
	}
	defer m.count(ctx, unmountOf(device), plugin, time.Now(), &err)
	if !byDriver(v) {
		return m.cfg.Pods.Unmount(ctx, pod, v)
	}
	if err := m.cfg.Pods.UnmountSubpaths(ctx, pod, v.Name); err != nil {
		return err
	}
	err = m.csi.Unpublish(ctx, pod, v.Name)
	m.tokens.forget(pod) // it needs none any more
	if err != nil || v.Plugin == pluginname.CSI {
		return err
	}
	return m.cfg.Pods.Unmount(ctx, pod, v) // what a kubelet left and no record names
}

// byDriver reports whether csi unmounts a volume.
func byDriver(v OnDisk) bool { return v.Plugin == pluginname.CSI || v.Plugin == pluginname.ISCSI }
