package cgroups

import (
	"slices"

	"github.com/opencontainers/cgroups"

	"github.com/nodelet/nodelet/host/cgroups/cpu"
	"github.com/nodelet/nodelet/host/cgroups/names"
)

// unlimited is no limit in cgroup v1, in bytes: it shows the largest number of whole pages, which is more than this.
const unlimited = 1 << 62

// Resources are the limits of one cgroup. A zero field leaves the kernel's value unchanged.
type Resources struct {
	CPUShares uint64 // cgroup v1 shares, 1024 per CPU; converted to a weight on cgroup v2
	CPUQuota  int64  // microseconds of CPU time per period; -1 is unlimited
	CPUPeriod uint64 // microseconds
	// CPUSet is a list such as "0-3,8". Only kubepods with the systemd driver needs it: systemd disables the cpuset
	// controller otherwise.
	CPUSet string
	Memory int64 // bytes; -1 is unlimited
	Pids   int64 // processes and threads; -1 is unlimited
	// HugePages maps page sizes to limits, both in bytes. Sizes that are not named are limited to 0. A nil map sets
	// no limits.
	HugePages map[int64]int64
	// Unified maps cgroup v2 files, such as memory.low, to the values to write; ignored on v1.
	Unified map[string]string
}

// weightSpan and shareSpan are the ranges of weights and shares, from the lowest to the highest.
const (
	weightSpan = 10000 - 1
	shareSpan  = cpu.MaxShares - cpu.MinShares
)

// weight converts shares to cgroup v2's range of 1 to 10000, linearly, as the kubelet does for pods and classes. (The
// runtimes use another curve for containers; weights are compared among siblings only.)
func weight(shares uint64) uint64 {
	if shares == 0 {
		return 0
	}
	return 1 + (min(cpu.MaxShares, max(cpu.MinShares, shares))-cpu.MinShares)*weightSpan/shareSpan
}

// spec converts r to the library's type.
func (t *Tree) spec(r Resources) *cgroups.Resources {
	out := &cgroups.Resources{
		SkipDevices:     true,
		SkipFreezeOnSet: true,
		CpuQuota:        r.CPUQuota,
		CpuPeriod:       r.CPUPeriod,
		CpusetCpus:      r.CPUSet,
		Memory:          r.Memory,
		HugetlbLimit:    t.hugePages(r.HugePages),
	}
	if r.Pids > 0 || r.Pids < 0 && t.countsPids {
		out.PidsLimit = &r.Pids
	}
	if t.v2 {
		out.CpuWeight, out.Unified = weight(r.CPUShares), r.Unified
	} else {
		out.CpuShares = r.CPUShares
	}
	return out
}

// hugePages returns limits for every page size of the machine: 0 for those that limits does not name.
func (t *Tree) hugePages(limits map[int64]int64) []*cgroups.HugepageLimit {
	if limits == nil || !t.hugetlb {
		return nil
	}
	var list []*cgroups.HugepageLimit
	for _, size := range t.pageSizes {
		list = append(list, &cgroups.HugepageLimit{Pagesize: names.PageSize(size), Limit: uint64(max(0, limits[size]))})
	}
	return list
}

// unlimitedPages returns limits that remove the limit of every page size.
func (t *Tree) unlimitedPages() map[int64]int64 {
	limits := map[int64]int64{}
	for _, size := range t.pageSizes {
		limits[size] = unlimited
	}
	return limits
}

// parsePageSizes reads the sizes of huge pages as the library names those of the machine.
func parsePageSizes(all []string) []int64 {
	var sizes []int64
	for _, name := range all {
		if size, ok := names.ParsePageSize(name); ok {
			sizes = append(sizes, size)
		}
	}
	slices.Sort(sizes)
	return sizes
}
