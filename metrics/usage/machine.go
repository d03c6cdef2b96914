package usage

import (
	"strings"

	"github.com/nodelet/nodelet/host/machine"
)

// memory has values of /proc/meminfo, in bytes.
type memory struct{ total, hugePages, swapTotal, swapFree uint64 }

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
	var m memory
	_ = withFile("/proc/meminfo", func(text []byte) { m = parseMeminfo(text) })
	if c.cfg.Hierarchy.mounts == nil && u.CPUPressure == nil && d >= Plain {
		u.CPUPressure = readPressure("/proc/pressure/cpu")
		u.MemoryPressure = readPressure("/proc/pressure/memory")
		u.IOPressure = readPressure("/proc/pressure/io")
	}
	u.MemoryLimit = m.total
	u.Swap = less(m.swapTotal, m.swapFree)
	u.SwapLimit = m.swapTotal
	return u, m
}

// cpus has the numbers of logical processors, cores and sockets in /proc/cpuinfo.
type cpus struct{ logical, cores, sockets int }

func parseCPUInfo(text string) (c cpus) {
	cores, sockets := map[string]bool{}, map[string]bool{}
	socket := ""
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "processor":
			c.logical++
			socket = ""
		case "physical id":
			socket = value
			sockets[value] = true
		case "core id":
			cores[socket+"/"+value] = true
		}
	}
	c.cores, c.sockets = len(cores), len(sockets)
	if c.cores == 0 { // this architecture does not list cores
		c.cores, c.sockets = c.logical, 1
	}
	return c
}
