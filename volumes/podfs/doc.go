// Package podfs sets up and removes what is below the pods' directories on this node, <root-dir>/pods/<uid>.
//
// It owns these directories: the volumes in them, their tmpfs mounts, the bind mounts of subPaths, etc-hosts,
// termination logs. It also owns where the devices of local block volumes are held open, below
// <root-dir>/plugins/kubernetes.io~local-volume/volumeDevices. The layout is the kubelet's, so that a node with running
// pods can be handed over and back.
//
// It never decides when a volume is needed, never talks to the API server or the runtime (content comes through
// Objects), keeps no state in memory between two calls, and never deletes across a mount point.
//
// Package volumes calls it for volumes and the agent for its own files, each step in its own goroutine. Calls for
// different pods may run at the same time and share only a limit on concurrent writes, the lock of volumes for one pod,
// and that of a local block volume; for one volume of one pod the caller makes one call at a time, except that several
// containers may have it mounted again if its mount has gone. Every call is idempotent.
//
// A crash leaves a volume that is missing, empty, complete, or complete with leftovers of an unfinished update (a
// "..<timestamp>" directory, a "..data_tmp" link). The next Mount completes it and removes the leftovers; Unmount
// removes all of it. There is no state file: the directories, the mounts, and the tokens and certificates in them are
// the state.
package podfs
