package main

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/kube/claims"
	"github.com/nodelet/nodelet/plugins"
	"github.com/nodelet/nodelet/plugins/devices"
	"github.com/nodelet/nodelet/plugins/dra"
)

// makePlugins sets up device plugins, DRA drivers, and the registration of plugins.
func (n *nodelet) makePlugins() (err error) {
	if err = n.makeClaims(); err != nil {
		return err
	}
	c := devices.Config{
		Root:    n.cfg.Paths.Root,
		Log:     n.log,
		Wake:    n.wake,
		Changed: n.devicesChanged,
		Pods:    n.activePods,
		Claims:  n.dra.Resources,
		Asked:   n.metrics.AddPodResources().Asked,
	}
	if settings := placementSettings(n.cfg); !settings.Off() {
		c.Exclusive = exclusive{n}
	}
	n.devices, err = devices.New(c)
	n.plugins = plugins.New(plugins.Config{
		Root: n.cfg.Paths.Root,
		Log:  n.log,
		Handlers: map[string]plugins.Handler{
			csi.PluginType:     n.volumes.Plugins(),
			devices.PluginType: n.devices,
			dra.PluginType:     n.dra,
		},
	})
	return err
}

// makeClaims sets up Dynamic Resource Allocation. Without an API server no ResourceClaim can be prepared, but those of
// an earlier process are unprepared.
func (n *nodelet) makeClaims() (err error) {
	c := dra.Config{Root: n.cfg.Paths.Root, Log: n.log, Wake: n.wake}
	if n.api != nil {
		known := &claims.Claims{Resource: n.api.Resource, NodeName: n.cfg.Node.Name}
		c.Claim, c.Slices = known.Claim, known
	}
	n.dra, err = dra.New(c)
	return err
}

// devicesChanged reports the devices in the Node's status.
func (n *nodelet) devicesChanged() { n.node.SetDevices(n.devices.Capacity()) }

// activePods are the pods on the node that have not ended.
func (n *nodelet) activePods(ctx context.Context) (active []*corev1.Pod, err error) {
	all, err := n.supervisor.Snapshot(ctx)
	for _, c := range all {
		if !c.Rejected && c.Status.Phase != corev1.PodSucceeded && c.Status.Phase != corev1.PodFailed {
			active = append(active, c.Pod)
		}
	}
	return active, err
}

// podAllocatable returns the allocatable resources without devices: these are counted when they are allocated, and a
// pod that has some is not refused because their plugin is gone.
func (n *nodelet) podAllocatable() corev1.ResourceList {
	list := n.node.Allocatable()
	maps.DeleteFunc(list,
		func(name corev1.ResourceName, _ resource.Quantity) bool { return n.devices.Known(string(name)) })
	return list
}
