// Package topology reads which CPUs, cores, sockets, NUMA nodes, uncore caches and huge pages the machine has.
//
// It reads /sys beneath a file system that its caller passes, so that tests can use recorded machines, and never
// writes. It decides nothing. agent/placement calls Read once, at the start; kube/node and agent/allocatable read the
// number of CPUs and huge pages again now and then, and metrics/usage that of CPUs, cores and sockets during a request.
// A crash leaves nothing behind.
//
// The numbers follow those that the kubelet gets from cAdvisor, because both agents must make the same decisions from
// them: CPUs that are offline do not count, and a cache counts as an uncore cache only if it is shared by fewer CPUs
// than the NUMA node has.
package topology
