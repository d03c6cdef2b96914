// Package volumes sets up and takes down the volumes of pods. It is the one entry point of the agent to storage.
//
// A Manager decides how a volume is mounted: it reads the claim, checks how the pod uses it, gathers what a driver
// needs (attachment, secrets, tokens, SELinux label) and grows volumes whose claims ask for that. The work itself is
// done by packages of which each owns one kind of storage:
//   - volumes/podfs: everything below <root-dir>/pods
//   - volumes/block: file systems on block devices
//   - volumes/iscsi: LUNs of iSCSI targets
//   - csi: CSI drivers, their volumes and the records of both; iscsi is an in-tree driver there
//   - kube/storage: claims, PersistentVolumes, attachments and CSIDrivers in the API
//
// It owns no files and no mounts, and never decides when a volume is needed.
//
// The agent calls Mount and Unmount, each in a goroutine of its own; for one volume of one pod it makes one call at a
// time. Every call is idempotent. A crash leaves what those packages leave; the next Mount or Unmount continues from
// there.
package volumes
