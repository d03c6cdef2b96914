package usage

import (
	"bytes"
	"path/filepath"
)

// userHZ is the unit of cpuacct.stat on every Linux that Go runs on.
const userHZ = 100

// readV1 reads cgroup v1, where each controller has files of its own.
func (h *Hierarchy) readV1(cgroup string, d Detail, u *Usage) {
	if dir := h.dir("cpuacct", cgroup); dir != "" {
		u.CPU, u.HasCPU = readUint(filepath.Join(dir, "cpuacct.usage"))
		if d == Full {
			readKeyed(filepath.Join(dir, "cpuacct.stat"), map[string]*uint64{"user": &u.User, "system": &u.System})
			u.User *= 1e9 / userHZ
			u.System *= 1e9 / userHZ
		}
	}
	if dir := h.dir("memory", cgroup); dir != "" {
		readMemoryV1(dir, d, u)
	}
	if d >= Plain {
		u.Processes = processes(h.dir(walked, cgroup))
	}
	if d != Full {
		return
	}
	if dir := h.dir("cpu", cgroup); dir != "" {
		readCPUV1(dir, u)
	}
	if dir := h.dir("pids", cgroup); dir != "" {
		readPids(dir, u)
	}
	if dir := h.dir("blkio", cgroup); dir != "" {
		readIOV1(dir, u)
	}
}

func readCPUV1(dir string, u *Usage) {
	u.HasSpecs = true
	u.Shares, _ = readUint(filepath.Join(dir, "cpu.shares"))
	u.Period, _ = readUint(filepath.Join(dir, "cpu.cfs_period_us"))
	if quota, ok := readUint(filepath.Join(dir, "cpu.cfs_quota_us")); ok && quota < unlimited {
		u.Quota = int64(quota)
	}
	readKeyed(filepath.Join(dir, "cpu.stat"), map[string]*uint64{
		"nr_periods":     &u.Periods,
		"nr_throttled":   &u.Throttled,
		"throttled_time": &u.ThrottledTime,
	})
}

func readMemoryV1(dir string, d Detail, u *Usage) {
	u.Memory, u.HasMemory = readUint(filepath.Join(dir, "memory.usage_in_bytes"))
	readKeyed(filepath.Join(dir, "memory.stat"), map[string]*uint64{ // total_ includes the cgroups below
		"total_cache":         &u.Cache,
		"total_rss":           &u.RSS,
		"total_mapped_file":   &u.Mapped,
		"total_swap":          &u.Swap,
		"total_inactive_file": &u.InactiveFile,
		"total_active_file":   &u.ActiveFile,
		"pgfault":             &u.Faults,
		"pgmajfault":          &u.MajorFaults,
		"total_pgfault":       &u.Tree.Faults,
		"total_pgmajfault":    &u.Tree.MajorFaults,
	})
	u.WorkingSet = less(u.Memory, u.InactiveFile)
	u.MemoryLimit = readLimit(filepath.Join(dir, "memory.limit_in_bytes"))
	u.SwapLimit = readLimit(filepath.Join(dir, "memory.memsw.limit_in_bytes"))
	if d != Full {
		return
	}
	u.MaxMemory, _ = readUint(filepath.Join(dir, "memory.max_usage_in_bytes"))
	u.FailCount, _ = readUint(filepath.Join(dir, "memory.failcnt"))
	u.Kernel, _ = readUint(filepath.Join(dir, "memory.kmem.usage_in_bytes"))
	u.Reservation, _ = readUint(filepath.Join(dir, "memory.soft_limit_in_bytes"))
	readKeyed(filepath.Join(dir, "memory.oom_control"), map[string]*uint64{"oom_kill": &u.OOMKills})
}

func readPids(dir string, u *Usage) {
	u.Threads, _ = readUint(filepath.Join(dir, "pids.current"))
	u.MaxThreads, _ = readUint(filepath.Join(dir, "pids.max"))
}

func readIOV1(dir string, u *Usage) {
	for _, f := range []struct {
		name  string
		bytes bool
	}{{"blkio.throttle.io_service_bytes_recursive", true}, {"blkio.throttle.io_serviced_recursive", false}} {
		withFile(filepath.Join(dir, f.name), func(text []byte) { u.IO = parseBlkio(u.IO, text, f.bytes) })
	}
}

// parseBlkio parses lines such as "8:0 Read 4096". The last line is a total without a device, which is skipped.
func parseBlkio(all []DeviceIO, text []byte, size bool) []DeviceIO {
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) != 3 {
			continue
		}
		major, minor, ok := parseDevice(fields[0])
		v, isNumber := parseUint(fields[2])
		if !ok || !isNumber {
			continue
		}
		var d *DeviceIO
		all, d = device(all, major, minor)
		d.hasSync = true
		if counter := d.blkio(string(fields[1]), size); counter != nil {
			*counter = v
		}
	}
	return all
}

// blkio returns the counter for an operation: of its bytes, or of how often it was done; nil if no metric shows it.
func (d *DeviceIO) blkio(operation string, size bool) *uint64 {
	switch {
	case operation == "Read" && size:
		return &d.ReadBytes
	case operation == "Read":
		return &d.Reads
	case operation == "Write" && size:
		return &d.WriteBytes
	case operation == "Write":
		return &d.Writes
	case operation == "Sync" && size:
		return &d.SyncBytes
	case operation == "Async" && size:
		return &d.AsyncBytes
	}
	return nil
}

func device(all []DeviceIO, major, minor uint64) ([]DeviceIO, *DeviceIO) {
	for i := range all {
		if all[i].Major == major && all[i].Minor == minor {
			return all, &all[i]
		}
	}
	all = append(all, DeviceIO{Major: major, Minor: minor})
	return all, &all[len(all)-1]
}

func parseDevice(text []byte) (major, minor uint64, ok bool) {
	a, b, found := bytes.Cut(text, []byte{':'})
	major, okMajor := parseUint(a)
	minor, okMinor := parseUint(b)
	return major, minor, found && okMajor && okMinor && major < 1<<32 && minor < 1<<32
}

// less returns a-b, or 0 if b is larger.
func less(a, b uint64) uint64 {
	if b > a {
		return 0
	}
	return a - b
}
