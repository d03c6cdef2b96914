package usage

import (
	"bytes"
	"path/filepath"
)

// readV2 reads cgroup v2, where all files of a cgroup are in one directory.
func (h *Hierarchy) readV2(dir string, d Detail, u *Usage) {
	_ = eachKeyed(filepath.Join(dir, "cpu.stat"), func(key string, v uint64) { cpuStatV2(u, key, v) })
	readMemoryV2(dir, d, u)
	if d >= Plain {
		_ = withFile(filepath.Join(dir, "cgroup.procs"), func(text []byte) {
			u.Processes = uint64(bytes.Count(text, []byte{'\n'}))
		})
		u.CPUPressure = readPressure(filepath.Join(dir, "cpu.pressure"))
		u.MemoryPressure = readPressure(filepath.Join(dir, "memory.pressure"))
		u.IOPressure = readPressure(filepath.Join(dir, "io.pressure"))
	}
	if d != Full {
		return
	}
	readSpecsV2(dir, u)
	readPids(dir, u)
	_ = withFile(filepath.Join(dir, "io.stat"), func(text []byte) { u.IO = parseIOStat(text) })
}

// cpuStatV2 reads a line of cpu.stat, whose times are in microseconds.
func cpuStatV2(u *Usage, key string, v uint64) {
	switch key {
	case "usage_usec":
		u.CPU, u.HasCPU = v*1000, true
	case "user_usec":
		u.User = v * 1000
	case "system_usec":
		u.System = v * 1000
	case "nr_periods":
		u.Periods = v
	case "nr_throttled":
		u.Throttled = v
	case "throttled_usec":
		u.ThrottledTime = v * 1000
	}
}

func readMemoryV2(dir string, d Detail, u *Usage) {
	u.MemoryLimit, u.SwapLimit = unlimited, unlimited
	anon := uint64(0)
	_ = eachKeyed(filepath.Join(dir, "memory.stat"), func(key string, v uint64) {
		switch key {
		case "anon":
			anon, u.HasMemory = v, true
		case "file":
			u.Cache = v
		case "file_mapped":
			u.Mapped = v
		case "kernel":
			u.Kernel = v
		case "inactive_file":
			u.InactiveFile = v
		case "active_file":
			u.ActiveFile = v
		case "pgfault":
			u.Faults, u.Tree.Faults = v, v
		case "pgmajfault":
			u.MajorFaults, u.Tree.MajorFaults = v, v
		default:
			u.Events.Reclaim.read(key, v)
		}
	})
	u.RSS = anon
	var ok bool
	if u.Memory, ok = readUint(filepath.Join(dir, "memory.current")); !ok {
		u.Memory = anon + u.Cache // the root cgroup has no such file
	}
	u.WorkingSet = less(u.Memory, u.InactiveFile)
	u.Swap, _ = readUint(filepath.Join(dir, "memory.swap.current"))
	if limit, ok := readUint(filepath.Join(dir, "memory.max")); ok {
		u.MemoryLimit = limit
	}
	if limit, ok := readUint(filepath.Join(dir, "memory.swap.max")); ok {
		u.SwapLimit = limit
	}
	if d != Full {
		return
	}
	u.MaxMemory, _ = readUint(filepath.Join(dir, "memory.peak"))
	u.Reservation, _ = readUint(filepath.Join(dir, "memory.low"))
	_ = eachKeyed(filepath.Join(dir, "memory.events"), func(key string, v uint64) {
		switch key {
		case "high":
			u.Events.High = v
		case "max":
			u.FailCount, u.Events.Max = v, v
		case "oom_kill":
			u.OOMKills = v
		}
	})
}

// read takes a line of memory.stat.
func (r *MemoryReclaim) read(key string, v uint64) {
	switch key {
	case "file_dirty":
		r.Dirty = v
	case "file_writeback":
		r.Writeback = v
	case "pgscan":
		r.Scanned = v
	case "pgsteal":
		r.Reclaimed = v
	case "workingset_refault_file":
		r.RefaultedFile = v
	case "workingset_refault_anon":
		r.RefaultedAnon = v
	}
}

func readSpecsV2(dir string, u *Usage) {
	if weight, ok := readUint(filepath.Join(dir, "cpu.weight")); ok {
		u.HasSpecs = true
		u.Shares = sharesOf(weight)
	}
	_ = withFile(filepath.Join(dir, "cpu.max"), func(text []byte) {
		quota, period, _ := bytes.Cut(bytes.TrimSpace(text), []byte{' '})
		u.Period, _ = parseUint(period)
		if v, ok := parseUint(quota); ok && v < unlimited {
			u.Quota = int64(v)
		}
	})
}

// sharesOf converts a weight of v2 (1 to 10000) to shares of v1 (2 to 262144): the reverse of the kubelet's conversion.
func sharesOf(weight uint64) uint64 {
	if weight == 0 || weight > 10000 {
		return 0
	}
	return 2 + (weight-1)*262142/9999
}

// parseIOStat parses lines such as "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6".
func parseIOStat(text []byte) (all []DeviceIO) {
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) < 2 {
			continue
		}
		major, minor, ok := parseDevice(fields[0])
		if !ok {
			continue
		}
		var d *DeviceIO
		all, d = device(all, major, minor)
		for _, field := range fields[1:] {
			key, value, _ := bytes.Cut(field, []byte{'='})
			v, ok := parseUint(value)
			if !ok {
				continue
			}
			switch string(key) {
			case "rbytes":
				d.ReadBytes = v
			case "wbytes":
				d.WriteBytes = v
			case "rios":
				d.Reads = v
			case "wios":
				d.Writes = v
			case "dbytes":
				d.DiscardBytes = v
			case "dios":
				d.DiscardOps = v
			}
		}
	}
	return all
}
