package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/kube/claims"
	"github.com/nodelet/nodelet/kube/storage"
	"github.com/nodelet/nodelet/plugins"
	"github.com/nodelet/nodelet/plugins/devices"
	"github.com/nodelet/nodelet/plugins/dra"
	"github.com/nodelet/nodelet/volumes"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// podStorage is the directories and the volumes of pods.
type podStorage struct {
	files   *podfs.FS
	volumes *volumes.Manager
}

// newStorage sets up the volumes. Without an API server there are no claims and no CSI volumes; those still on the
// node are taken down.
func newStorage(p *process, x *parts) (err error) {
	s := &podStorage{}
	api, node := x.api, x.machine.node
	if s.files, err = podfs.New(podfs.Config{Root: p.cfg.Paths.Root, Log: p.log}); err != nil {
		return err
	}
	c := volumes.Config{
		Root:          p.cfg.Paths.Root,
		NodeName:      p.cfg.Node.Name,
		Log:           p.log,
		Pods:          s.files,
		Health:        p.cfg.Gate("CSIVolumeHealth"),
		Metrics:       p.instruments,
		Event:         api.podEvent,
		ClaimEvent:    api.recorder.ClaimEvent,
		InUse:         node.SetVolumesInUse,
		Wake:          x.wake,
		LimitExceeded: func(ctx context.Context, pod *corev1.Pod, why string) { x.supervisor.RejectVolumes(ctx, pod, why) },
	}
	if !api.standalone() {
		cluster := storage.New(storage.Config{
			Core:               api.client.Core,
			Storage:            api.client.Storage,
			NodeName:           p.cfg.Node.Name,
			ControllerAttaches: *p.cfg.Kubelet.EnableControllerAttachDetach,
			Node:               node.Node,
			InUse:              node.InUse,
			Wake:               x.wake,
			Problem:            node.SetStorage,
			Log:                p.log,
		})
		c.Cluster = cluster
		x.nodeChanged = append(x.nodeChanged, cluster.NodeSeen)
		p.Start(cluster.Run)
		p.AtEnd(cluster.Close)
	}
	if s.volumes, err = volumes.New(c); err != nil {
		return err
	}
	p.Start(s.volumes.Run)
	x.storage = s
	return nil
}

// pluginHosts are device plugins and DRA drivers.
type pluginHosts struct {
	devices *devices.Devices
	dra     *dra.DRA
}

// newPlugins sets up device plugins, DRA drivers, and the registration of plugins. Without an API server no
// ResourceClaim can be prepared, but those of an earlier process are unprepared.
func newPlugins(p *process, x *parts) (err error) {
	h := &pluginHosts{}
	root := p.cfg.Paths.Root
	health, healthChanged := p.cfg.Gate("ResourceHealthStatus"), func([]types.UID) {}
	if health {
		healthChanged = func(uids []types.UID) { x.supervisor.HealthChanged(uids) }
	}
	c := dra.Config{
		Root:           root,
		Log:            p.log,
		Health:         health,
		HealthChanged:  healthChanged,
		HealthMessages: p.cfg.Gate("ResourceHealthStatusMessage"),
		Wake:           x.wake,
	}
	if api := x.api; !api.standalone() {
		c.API = &claims.Claims{Resource: api.client.Resource, NodeName: p.cfg.Node.Name}
	}
	if h.dra, err = dra.New(c); err != nil {
		return err
	}
	d := devices.Config{
		Root:          root,
		Log:           p.log,
		Wake:          x.wake,
		HealthChanged: healthChanged,
		Changed:       func() { x.machine.node.SetDevices(h.devices.Capacity()) },
		Pods:          func(c context.Context) (_, _ []*corev1.Pod, _ error) { return x.supervisor.Unfinished(c) },
		Claims:        h.dra.Resources,
		Exclusive:     x.placement,
		Asked:         p.metrics.AddPodResources(),
	}
	d.Registered, d.Allocated = p.metrics.AddDevicePlugins()
	if h.devices, err = devices.New(d); err != nil {
		return err
	}
	registry := plugins.New(plugins.Config{
		Root: root,
		Log:  p.log,
		Handlers: map[string]plugins.Handler{
			csi.PluginType:     x.storage.volumes.Plugins(),
			devices.PluginType: h.devices,
			dra.PluginType:     h.dra,
		},
		Connected: map[string]func() []string{devices.PluginType: h.devices.Connected},
	})
	p.Start(h.devices.Run)
	p.Start(h.dra.Run)
	p.Start(registry.Run)
	p.metrics.AddClaims(h.dra.InUse)
	p.metrics.AddPlugins(registry.Names, registry.Sockets)
	x.plugins = h
	return nil
}
