package usage

import (
	"bytes"
	"strconv"
	"strings"
)

// memory has the values of /proc/meminfo, in bytes.
type memory struct{ total, free, hugePages, swapTotal, swapFree uint64 }

func parseMeminfo(text []byte) (m memory) {
	for line := range bytes.Lines(text) {
		key, value, _ := bytes.Cut(line, []byte{':'})
		var into *uint64
		switch string(key) {
		case "MemTotal":
			into = &m.total
		case "MemFree":
			into = &m.free
		case "Hugetlb":
			into = &m.hugePages
		case "SwapTotal":
			into = &m.swapTotal
		case "SwapFree":
			into = &m.swapFree
		default:
			continue
		}
		if kib, ok := parseUint(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(value), []byte("kB")))); ok && kib < 1<<54 {
			*into = kib << 10
		}
	}
	return m
}

// machineUse returns the usage of the whole machine: that of the root cgroup, with the values that only /proc has.
func (c *Collector) machineUse(d Detail) (Usage, memory) {
	u, _ := c.cfg.Hierarchy.read("/", d)
	var m memory
	_ = withFile("/proc/meminfo", func(text []byte) { m = parseMeminfo(text) })
	if c.cfg.Hierarchy.mounts == nil { // the root cgroup of v2 does not count memory
		u.Memory = less(m.total, m.free)
		u.WorkingSet = less(u.Memory, u.InactiveFile)
		if u.CPUPressure == nil && d >= Plain {
			u.CPUPressure = readPressure("/proc/pressure/cpu")
			u.MemoryPressure = readPressure("/proc/pressure/memory")
			u.IOPressure = readPressure("/proc/pressure/io")
		}
	}
	u.MemoryLimit = m.total
	u.Swap = less(m.swapTotal, m.swapFree)
	u.SwapLimit = m.swapTotal
	return u, m
}

// processLimits returns the limit of processes and threads, the smaller of pid_max and threads-max in
// /proc/sys/kernel, and their number, from /proc/loadavg.
func processLimits() (limit, running int64, ok bool) {
	most, ok := readUint("/proc/sys/kernel/pid_max")
	if threads, there := readUint("/proc/sys/kernel/threads-max"); there && threads < most {
		most = threads
	}
	_ = withFile("/proc/loadavg", func(text []byte) { running = parseTasks(string(text)) })
	return int64(most), running, ok && running > 0
}

// parseTasks reads the number of tasks from /proc/loadavg: "0.1 0.2 0.3 2/374 11234".
func parseTasks(text string) int64 {
	fields := strings.Fields(text)
	if len(fields) < 4 {
		return 0
	}
	_, all, _ := strings.Cut(fields[3], "/")
	n, err := strconv.ParseInt(all, 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
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
