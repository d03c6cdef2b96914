// Package nodefacts collects the facts of the node that the CRI configuration of pods depends on, as one spec.Node.
//
// It owns the questions to the kernel and to files of the machine (SELinux, AppArmor, swap, DNS settings), and takes
// over what changes later: DNS settings, addresses and allocatable resources of the Node object, and the runtime's
// cgroup driver. It never decides about pods. cmd/nodelet makes it from the configuration; every step of the agent
// reads the result. It keeps no state on disk, so a crash leaves nothing behind: the next start reads the machine
// again, and gets the rest as before.
package nodefacts
