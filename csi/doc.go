// Package csi drives the volumes of CSI drivers on this node (CSI specification 1.13, node service, and the volume
// conditions of drivers for 1.12).
//
// It owns the drivers that have registered (Accept), the connections to them, and what they have set up on this node:
// which volume is staged, which pods use it, where it is published. Paths and vol_data.json files are the kubelet's, so
// that a node with mounted volumes can be handed over and back.
//
// Terms: a driver stages a volume once on the node, and publishes it for each pod. A use is a pod's right to a volume;
// it begins before the volume is staged and ends after it is unpublished. A record holds the state and the uses of a
// volume; its journal is in <root-dir>/nodelet/csi.
//
// Invariants: a call that changes something is in the journal before it is made, and it has the lock of its volume from
// then until its answer or its timeout, also if its caller does not wait for that. A volume is unstaged only while its
// lock is held and it has no use; a use begins only while that lock is held. So a driver has one call at a time for a
// volume, nothing is unstaged while a pod uses it, and nothing staged is forgotten.
//
// In-tree kinds of volumes that are staged and published in the same way, such as iscsi, are driven like CSI drivers
// (InTreeDriver), with the paths that they have in a kubelet.
//
// It never talks to the API server or the runtime (callers pass what the API says about a volume), never decides when a
// pod needs a volume, and never mounts or unmounts (drivers do). It removes only empty directories, its own files, and
// files in the directories for the devices of block volumes, which hold no data.
//
// Package volumes calls it, each step in its own goroutine; a slow volume delays only the pods that use it.
//
// A crash leaves the journals. The last entry of one may describe a call that has taken effect or not. The next process
// compares the records with the kubelet's files and the mount table. It relies on what they confirm, repeats all other
// calls (they are idempotent by the specification), and unstages volumes without a use.
package csi
