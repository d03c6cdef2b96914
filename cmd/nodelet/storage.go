package main

import (
	"context"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/kube/storage"
	"github.com/nodelet/nodelet/volumes/iscsi"
)

// makeStorage sets up what volumes of claims and CSI drivers need. Without an API server a node has neither; what a CSI
// volume of an earlier life has left is still taken down.
func (n *nodelet) makeStorage() (err error) {
	c := csi.Config{Root: n.cfg.Paths.Root, NodeName: n.cfg.Node.Name, Log: n.log, Wake: n.wake, Changed: n.volumesChanged,
		Health: n.cfg.Gate("CSIVolumeHealth"), Kinds: []csi.Kind{n.iscsi()}}
	if n.api != nil {
		n.storage = storage.New(storage.Config{Core: n.api.Core, Storage: n.api.Storage, NodeName: n.cfg.Node.Name,
			ControllerAttaches: n.cfg.Node.ControllerAttachDetach, Node: n.node.Node, Wake: n.wake, Log: n.log})
		c.Registered = func(ctx context.Context, d csi.DriverInfo) error {
			return n.storage.SetDriver(ctx, storage.NodeDriver(d))
		}
		c.Gone = func(ctx context.Context, driver string) {
			if err := n.storage.RemoveDriver(ctx, driver); err != nil {
				n.log.Warn("cannot take a driver out of the CSINode", "driver", driver, "err", err)
			}
		}
	}
	n.csi, err = csi.New(c)
	return err
}

// iscsi drives volumes of that kind as csi does those of CSI drivers.
func (n *nodelet) iscsi() csi.Kind {
	node := iscsi.New(iscsi.Config{Dir: filepath.Join(n.cfg.Paths.Root, "plugins", iscsi.Plugin), Log: n.log})
	return csi.Kind{Plugin: iscsi.Plugin, Node: node, Handle: iscsi.HandleOf}
}

// volumesChanged shows in the Node's status which volumes must not be detached.
func (n *nodelet) volumesChanged() { n.node.SetVolumesInUse(n.csi.InUse()) }

// nodeSeen passes on that there is a new version of the Node object.
func (n *nodelet) nodeSeen(o *corev1.Node) {
	if n.storage != nil {
		n.storage.NodeSeen(o)
	}
}

// runStorage lets the rooms of volumes work; what it returns ends what does not end with the others.
func (n *nodelet) runStorage(start func(room func(context.Context))) (end func()) {
	n.volumesChanged()
	start(n.csi.Run)
	if n.storage == nil {
		return func() {}
	}
	start(n.storage.Run)
	return n.storage.Close
}
