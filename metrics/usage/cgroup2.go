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
	u.MemoryLimit = readLimit(filepath.Join(dir, "memory.max"))
	u.SwapLimit = readLimit(filepath.Join(dir, "memory.swap.max"))
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
// metric. Linux 5.15 to 5.18 ends no line behind the name of a device without statistics, so that the next name follows
// in the same line. A device that the kernel cannot name is "(unknown)".
func parseIOStat(text []byte) (all []DeviceIO) {
	var major, minor uint64 // the name that was read last
	var known bool
	var d *DeviceIO // the device with this name; nil before its first value
	for field := range bytes.FieldsSeq(text) {
		key, value, isValue := bytes.Cut(field, []byte{'='})
		if !isValue {
			major, minor, known = parseDevice(field)
			d = nil
			continue
		}
		v, ok := parseUint(value)
		if !ok || !known {
			continue
		}
		if d == nil {
			all, d = device(all, major, minor)
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
	return all
}
