// Package block mounts block devices of the node. It reads what a device holds, formats a blank one, and repairs and
// grows file systems.
//
// It owns no state. It runs the tools of the node: mount, blkid, fsck, mkfs, resize2fs, xfs_growfs and btrfs. It never
// decides that a pod uses a device, and never formats a device that may hold data:
//   - The device is open and locked all the time, so that its name cannot come to mean another device.
//   - Every place where a signature can be must be readable, with O_DIRECT: blkid exits with the same code for "no
//     signature" and "cannot read", and the page cache may be older than the device.
//   - blkid must find nothing, neither on the device nor in the agent's own copy of those places, and print no error.
//     Both are done twice, the second time while no other program and no kernel subsystem has the device open
//     exclusively.
//   - mkfs.xfs looks once more.
//
// Contents without a signature are formatted over, as the kubelet does: LUNs and logical volumes are often handed out
// again with the remains of earlier data.
//
// Tools that write to a device are never killed: they run to their end when the caller gives up and when the agent
// ends, and the device stays locked until then.
//
// Packages volumes and volumes/iscsi call it. They make sure that a device is mounted once. After a crash of the agent
// the tools run on, and the next Open waits for them. After a crash of the node a device may be half formatted; it is
// formatted again if no signature is there yet.
package block
