package usage

import (
	"bytes"
	"path/filepath"
)

// readV2 reads cgroup v2, where all files of a cgroup are in one directory.
func (h *Hierarchy) readV2(dir string, d Detail, u *Usage) {
	readCPUV2(dir, u)
	readMemoryV2(dir, d, u)
	if d >= Pressure {
		u.CPUPressure = readPressure(filepath.Join(dir, "cpu.pressure"))
		u.MemoryPressure = readPressure(filepath.Join(dir, "memory.pressure"))
	}
	if d >= Plain {
		u.Processes = processes(dir)
		u.IOPressure = readPressure(filepath.Join(dir, "io.pressure"))
	}
	if d != Full {
		return
	}
	readSpecsV2(dir, u)
	readPids(dir, u)
	withFile(filepath.Join(dir, "io.stat"), func(text []byte) { u.IO = parseIOStat(text) })
}

// readCPUV2 reads cpu.stat, whose times are in microseconds.
func readCPUV2(dir string, u *Usage) {
	u.HasCPU = readKeyed(filepath.Join(dir, "cpu.stat"), map[string]*uint64{
		"usage_usec":     &u.CPU,
		"user_usec":      &u.User,
		"system_usec":    &u.System,
		"nr_periods":     &u.Periods,
		"nr_throttled":   &u.Throttled,
		"throttled_usec": &u.ThrottledTime,
	})
	for _, time := range []*uint64{&u.CPU, &u.User, &u.System, &u.ThrottledTime} {
		*time *= 1000
	}
}

func readMemoryV2(dir string, d Detail, u *Usage) {
	u.MemoryLimit, u.SwapLimit = unlimited, unlimited
	reclaim := &u.Events.Reclaim
	u.HasMemory = readKeyed(filepath.Join(dir, "memory.stat"), map[string]*uint64{
		"anon":                    &u.RSS,
		"file":                    &u.Cache,
		"file_mapped":             &u.Mapped,
		"kernel":                  &u.Kernel,
		"inactive_file":           &u.InactiveFile,
		"active_file":             &u.ActiveFile,
		"pgfault":                 &u.Faults,
		"pgmajfault":              &u.MajorFaults,
		"file_dirty":              &reclaim.Dirty,
		"file_writeback":          &reclaim.Writeback,
		"pgscan":                  &reclaim.Scanned,
		"pgsteal":                 &reclaim.Reclaimed,
		"workingset_refault_file": &reclaim.RefaultedFile,
		"workingset_refault_anon": &reclaim.RefaultedAnon,
	})
	u.Tree = u.PageFaults
	var ok bool
	if u.Memory, ok = readUint(filepath.Join(dir, "memory.current")); !ok {
		u.Memory = u.RSS + u.Cache // the root cgroup has no such file
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
	u.Reservation, _ = readUint(filepath.Join(dir, "memory.min"))
	readKeyed(filepath.Join(dir, "memory.events"), map[string]*uint64{
		"high":     &u.Events.High,
		"max":      &u.Events.Max,
		"oom_kill": &u.Events.TreeOOMKills,
	})
	readKeyed(filepath.Join(dir, "memory.events.local"), map[string]*uint64{"oom_kill": &u.OOMKills})
}

func readSpecsV2(dir string, u *Usage) {
	if weight, ok := readUint(filepath.Join(dir, "cpu.weight")); ok {
		u.HasSpecs = true
		u.Shares = sharesOf(weight)
	}
	withFile(filepath.Join(dir, "cpu.max"), func(text []byte) {
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

// parseIOStat parses lines such as "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6". What was discarded is of no
// metric.
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
			}
		}
	}
	return all
}
