package config

// breaks has the settings without effect on which pods may rely, with what is missing. Without them a pod runs with
// less than it was promised, so a takeover from the kubelet must be decided by the user.
var breaks = map[string]string{
	"cpuManagerPolicy":      "Guaranteed pods share all CPUs instead of having their own",
	"memoryManagerPolicy":   "the memory of Guaranteed pods is not bound to NUMA nodes",
	"topologyManagerPolicy": "CPUs, memory and devices are not aligned on NUMA nodes",
	"reservedSystemCPUs":    "pods may run on the CPUs that are reserved for the system",
	"reservedMemory":        "memory is not reserved by NUMA node",
	"qosReserved":           "the memory requests of pods are not reserved",
}
