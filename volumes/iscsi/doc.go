// Package iscsi attaches LUNs of iSCSI targets to this node and mounts them.
//
// It works like the node service of a CSI driver, for package csi, which keeps the records of volumes and repeats calls
// that a crash has interrupted: every call is idempotent. It owns the sessions that it has created, the devices in
// them, and its mounts. It keeps nothing in memory: the kernel knows the sessions and devices. A LUN's state file lies
// in its staging directory (iscsi.json, the kubelet's own) and is written before the login. A file in State says for
// each session of this boot whether this agent or another program has created it; sessions of other programs are used,
// but never ended.
//
// All LUNs of a target share a session. It ends with the device of the last one. The package never discovers targets,
// scans only for the LUNs that volumes name, never formats a device that may hold data, and passes no secret on a
// command line or to a log.
//
// It runs the node's iscsiadm, and mount, fsck and mkfs through volumes/block. Package csi calls it, one call at a time
// for each LUN. Calls that talk to a target have a time limit; tools that repair or format a device have none.
//
// A crash leaves sessions, devices, mounts and the state files. Package csi repeats the call, which continues from
// them.
package iscsi
