// Package storage reads and writes what the API server knows of volumes: PersistentVolumeClaims and PersistentVolumes,
// VolumeAttachments, CSIDrivers, this node's CSINode, the sizes of expanded claims.
//
// A node may get claims, PersistentVolumes and VolumeAttachments one by one, and only those of its pods; it may not
// list or watch them. So waiting for an attachment relies on the watch of the Node object, whose status the controller
// manager updates. CSIDrivers are watched from the first volume that needs one.
//
// It owns this node's CSINode and the driver annotations and topology labels of the Node. It never touches the disk or
// a driver, and never decides when a pod needs a volume. Package volumes calls it, each step in its own goroutine. A
// crash loses nothing.
package storage
