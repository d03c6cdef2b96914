package pod

// The kernel's bounds for the CPU shares and the CPU quota of a cgroup.
const (
	// MinCPUShares and MaxCPUShares are in units of which a CPU has 1024.
	MinCPUShares = 2
	MaxCPUShares = 262144
	// minCPUQuota is in microseconds.
	minCPUQuota = 1000
)

// CPUShares converts a CPU request in thousandths of a CPU to cgroup v1 shares, as the kubelet does.
func CPUShares(milliCPU int64) int64 {
	return min(max(milliCPU*1024/1000, MinCPUShares), MaxCPUShares)
}

// CPUQuota converts a CPU limit in thousandths of a CPU to microseconds per period, as the kubelet does. period is in
// microseconds. The result is 0, for no limit, if the limit is 0.
func CPUQuota(milliCPU, period int64) int64 {
	if milliCPU == 0 {
		return 0
	}
	return max(milliCPU*period/1000, minCPUQuota)
}
