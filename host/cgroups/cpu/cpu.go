// Package cpu converts amounts of CPU to the units of the kernel's cgroups.
//
// It is pure and has no state. Package cgroups and agent/spec call it, so that the limits that the agent sets and those
// that it passes to the runtime are the same.
package cpu

// The kernel's bounds for the CPU shares and the CPU quota of a cgroup.
const (
	// MinShares and MaxShares are in units of which a CPU has 1024.
	MinShares = 2
	MaxShares = 262144
	// minQuota and maxQuota are in microseconds.
	minQuota = 1000
	maxQuota = 1<<44 - 1
)

// Shares converts a CPU request in thousandths of a CPU to cgroup v1 shares, as the kubelet does.
func Shares(milliCPU int64) int64 {
	return min(max(min(milliCPU, MaxShares)*1024/1000, MinShares), MaxShares)
}

// Milli converts cgroup v1 shares to the CPU request in thousandths of a CPU that they are for.
func Milli(shares int64) int64 { return (shares*1000 + 1023) / 1024 }

// Quota converts a CPU limit in thousandths of a CPU to microseconds per period, as the kubelet does. period is in
// microseconds. The result is 0, for no limit, if the limit is 0.
func Quota(milliCPU, period int64) int64 {
	if milliCPU == 0 {
		return 0
	}
	if milliCPU > maxQuota/period*1000 {
		return maxQuota
	}
	return max(milliCPU*period/1000, minQuota)
}
