package main

import (
	"context"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/kube/storage"
	"github.com/nodelet/nodelet/volumes"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// makeStorage sets up the volumes. Without an API server there are no claims and no CSI volumes; those still on the
// node are taken down.
func (n *nodelet) makeStorage() (err error) {
	root := n.cfg.Paths.Root
	if n.podFS, err = podfs.New(podfs.Config{PodsDir: filepath.Join(root, "pods"), Log: n.log}); err != nil {
		return err
	}
	c := volumes.Config{
		Root:     root,
		NodeName: n.cfg.Node.Name,
		Log:      n.log,
		Pods:     n.podFS,
		Health:   n.cfg.Gate("CSIVolumeHealth"),
		Metrics:  n.meter,
		Event:    n.podEvent,
		InUse:    n.node.SetVolumesInUse,
		Wake:     n.wake,
	}
	if n.api != nil {
		n.storage = storage.New(storage.Config{
			Core:               n.api.Core,
			Storage:            n.api.Storage,
			NodeName:           n.cfg.Node.Name,
			ControllerAttaches: n.cfg.Node.ControllerAttachDetach,
			Node:               n.node.Node,
			Wake:               n.wake,
			Log:                n.log,
		})
		c.Cluster = n.storage
	}
	n.volumes, err = volumes.New(c)
	return err
}

// nodeSeen passes on that there is a new version of the Node object.
func (n *nodelet) nodeSeen(o *corev1.Node) {
	if n.storage != nil {
		n.storage.NodeSeen(o)
	}
}

// runStorage starts the work on volumes. The function that it returns ends what does not end with the context.
func (n *nodelet) runStorage(start func(run func(context.Context))) (end func()) {
	start(n.volumes.Run)
	if n.storage == nil {
		return func() {}
	}
	start(n.storage.Run)
	return n.storage.Close
}
