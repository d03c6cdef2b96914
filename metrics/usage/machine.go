package usage

import (
	"io/fs"

	"github.com/nodelet/nodelet/host/machine"
	"github.com/nodelet/nodelet/host/topology"
)

// memory has values of /proc/meminfo, in bytes.
type memory struct{ total, hugePages, swapTotal, swapFree uint64 }

func readMeminfo() (m memory) {
	withFile("/proc/meminfo", func(text []byte) { m = parseMeminfo(text) })
	return m
}

func parseMeminfo(text []byte) (m memory) {
	_ = machine.ParseMeminfo(text, map[string]*uint64{
		"MemTotal":  &m.total,
		"Hugetlb":   &m.hugePages,
		"SwapTotal": &m.swapTotal,
		"SwapFree":  &m.swapFree,
	})
	return m
}

// machineUse returns the usage of the whole machine: that of the root cgroup, with the values that only /proc has.
func (c *Collector) machineUse(d Detail) (Usage, memory) {
	u, _ := c.cfg.Hierarchy.read("/", d)
	m := readMeminfo()
	if c.cfg.Hierarchy.mounts == nil && u.CPUPressure == nil && d >= Pressure {
		u.CPUPressure = readPressure("/proc/pressure/cpu")
		u.MemoryPressure = readPressure("/proc/pressure/memory")
		u.IOPressure = readPressure("/proc/pressure/io")
	}
	u.MemoryLimit = m.total
	u.Swap = less(m.swapTotal, m.swapFree)
	u.SwapLimit = m.swapTotal
	return u, m
}

// cpus has the numbers of the logical processors that are online, and of their cores and sockets.
type cpus struct{ logical, cores, sockets int }

// countCPUs counts the processors of the machine whose file system is root.
func countCPUs(root fs.FS) cpus {
	online, _ := topology.Online(root)
	all, _ := topology.CPUs(root)
	cores, sockets := map[int]bool{}, map[int]bool{}
	for _, c := range all {
		cores[c.Core], sockets[c.Socket] = true, true
	}
	c := cpus{logical: online.Size(), cores: len(cores), sockets: len(sockets)}
	if c.cores == 0 { // the kernel does not say
		c.cores, c.sockets = c.logical, 1
	}
	return c
}
