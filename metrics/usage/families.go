package usage

import (
	"strconv"
	"time"

	api "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/nodelet/nodelet/metrics"
)

// families has the families that cAdvisor exposes for a cgroup with the kubelet's settings, without those that are
// always zero.
var families = []family{
	cpuTime("container_cpu_user_seconds_total",
		"Cumulative user cpu time consumed in seconds.", func(u *Usage) uint64 { return u.User }),
	cpuTime("container_cpu_system_seconds_total",
		"Cumulative system cpu time consumed in seconds.", func(u *Usage) uint64 { return u.System }),
	{
		name: "container_cpu_usage_seconds_total",
		help: "Cumulative cpu time consumed in seconds.",
		kind: metrics.KindCounter,
		write: func(t *metrics.Text, g *group) {
			if g.use.HasCPU {
				t.Rendered(float64(g.use.CPU)/1e9, 0, g.labels, "cpu", "total")
			}
		},
	},
	quota("container_cpu_cfs_periods_total",
		"Number of elapsed enforcement period intervals.", func(u *Usage) float64 { return float64(u.Periods) }),
	quota("container_cpu_cfs_throttled_periods_total",
		"Number of throttled period intervals.", func(u *Usage) float64 { return float64(u.Throttled) }),
	quota("container_cpu_cfs_throttled_seconds_total",
		"Total time duration the container has been throttled.",
		func(u *Usage) float64 { return float64(u.ThrottledTime) / 1e9 }),

	size64("container_memory_cache", "Number of bytes of page cache memory.", func(u *Usage) uint64 { return u.Cache }),
	size64("container_memory_rss", "Size of RSS in bytes.", func(u *Usage) uint64 { return u.RSS }),
	size64("container_memory_kernel_usage",
		"Size of kernel memory allocated in bytes.", func(u *Usage) uint64 { return u.Kernel }),
	size64("container_memory_mapped_file",
		"Size of memory mapped files in bytes.", func(u *Usage) uint64 { return u.Mapped }),
	size64("container_memory_swap", "Container swap usage in bytes.", func(u *Usage) uint64 { return u.Swap }),
	count64("container_memory_failcnt",
		"Number of memory usage hits limits", func(u *Usage) uint64 { return u.FailCount }),
	size64("container_memory_usage_bytes",
		"Current memory usage in bytes, including all memory regardless of when it was accessed",
		func(u *Usage) uint64 { return u.Memory }),
	size64("container_memory_max_usage_bytes",
		"Maximum memory usage recorded in bytes", func(u *Usage) uint64 { return u.MaxMemory }),
	size64("container_memory_working_set_bytes",
		"Current working set in bytes.", func(u *Usage) uint64 { return u.WorkingSet }),
	size64("container_memory_total_active_file_bytes",
		"Current total active file in bytes.", func(u *Usage) uint64 { return u.ActiveFile }),
	size64("container_memory_total_inactive_file_bytes",
		"Current total inactive file in bytes.", func(u *Usage) uint64 { return u.InactiveFile }),
	size64("container_memory_file_dirty_bytes",
		"Number of bytes of file cache that has been modified but not yet written back to disk.",
		func(u *Usage) uint64 { return u.Events.Reclaim.Dirty }),
	size64("container_memory_file_writeback_bytes",
		"Number of bytes of file cache that is currently being written back to disk.",
		func(u *Usage) uint64 { return u.Events.Reclaim.Writeback }),
	count64("container_memory_pgscan_total",
		"Cumulative number of pages scanned by the page reclaim algorithm.",
		func(u *Usage) uint64 { return u.Events.Reclaim.Scanned }),
	count64("container_memory_pgsteal_total",
		"Cumulative number of pages reclaimed by the page reclaim algorithm.",
		func(u *Usage) uint64 { return u.Events.Reclaim.Reclaimed }),
	count64("container_memory_workingset_refault_file_total",
		"Cumulative number of refaults of previously evicted file pages.",
		func(u *Usage) uint64 { return u.Events.Reclaim.RefaultedFile }),
	count64("container_memory_workingset_refault_anon_total",
		"Cumulative number of refaults of previously evicted anonymous pages.",
		func(u *Usage) uint64 { return u.Events.Reclaim.RefaultedAnon }),
	{
		name:  "container_memory_failures_total",
		help:  "Cumulative count of memory allocation failures.",
		kind:  metrics.KindCounter,
		write: writeFaults,
	},
	count64("container_memory_events_high_total",
		"Cumulative count of memory.high throttle events for the container",
		func(u *Usage) uint64 { return u.Events.High }),
	count64("container_memory_events_max_total",
		"Cumulative count of memory.max limit hit events for the container",
		func(u *Usage) uint64 { return u.Events.Max }),
	count64("container_oom_events_total",
		"Count of out of memory events observed for the container", func(u *Usage) uint64 { return u.OOMKills }),

	ofFileSystem("container_fs_inodes_free",
		"Number of available Inodes", func(f *Figures) uint64 { return f.InodesFree }),
	ofFileSystem("container_fs_inodes_total",
		"Number of Inodes", func(f *Figures) uint64 { return f.Inodes }),
	ofFileSystem("container_fs_limit_bytes",
		"Number of bytes that can be consumed by the container on this filesystem.",
		func(f *Figures) uint64 { return f.Capacity }),
	ofFileSystem("container_fs_usage_bytes",
		"Number of bytes that are consumed by the container on this filesystem.",
		func(f *Figures) uint64 { return f.Used }),
	deviceCount("container_fs_reads_bytes_total",
		"Cumulative count of bytes read", func(d *DeviceIO) uint64 { return d.ReadBytes }),
	deviceCount("container_fs_reads_total",
		"Cumulative count of reads completed", func(d *DeviceIO) uint64 { return d.Reads }),
	deviceCount("container_fs_writes_bytes_total",
		"Cumulative count of bytes written", func(d *DeviceIO) uint64 { return d.WriteBytes }),
	deviceCount("container_fs_writes_total",
		"Cumulative count of writes completed", func(d *DeviceIO) uint64 { return d.Writes }),
	ofDevice("container_fs_sector_reads_total",
		"Cumulative count of sector reads completed", metrics.KindCounter, sectorsRead),
	ofDevice("container_fs_reads_merged_total", "Cumulative count of reads merged", metrics.KindCounter, readsMerged),
	ofDevice("container_fs_read_seconds_total",
		"Cumulative count of seconds spent reading", metrics.KindCounter, readTime),
	ofDevice("container_fs_sector_writes_total",
		"Cumulative count of sector writes completed", metrics.KindCounter, sectorsWritten),
	ofDevice("container_fs_writes_merged_total", "Cumulative count of writes merged", metrics.KindCounter, writesMerged),
	ofDevice("container_fs_write_seconds_total",
		"Cumulative count of seconds spent writing", metrics.KindCounter, writeTime),
	ofDevice("container_fs_io_current", "Number of I/Os currently in progress", metrics.KindGauge, inProgress),
	ofDevice("container_fs_io_time_seconds_total",
		"Cumulative count of seconds spent doing I/Os", metrics.KindCounter, busyTime),
	ofDevice("container_fs_io_time_weighted_seconds_total",
		"Cumulative weighted I/O time in seconds", metrics.KindCounter, weightedTime),
	{
		name:  "container_blkio_device_usage_total",
		help:  "Blkio Device bytes usage",
		kind:  metrics.KindCounter,
		write: writeBlkio,
	},

	network("container_network_receive_bytes_total",
		"Cumulative count of bytes received", func(i *Interface) uint64 { return i.RxBytes }),
	network("container_network_receive_packets_total",
		"Cumulative count of packets received", func(i *Interface) uint64 { return i.RxPackets }),
	network("container_network_receive_packets_dropped_total",
		"Cumulative count of packets dropped while receiving", func(i *Interface) uint64 { return i.RxDropped }),
	network("container_network_receive_errors_total",
		"Cumulative count of errors encountered while receiving", func(i *Interface) uint64 { return i.RxErrors }),
	network("container_network_transmit_bytes_total",
		"Cumulative count of bytes transmitted", func(i *Interface) uint64 { return i.TxBytes }),
	network("container_network_transmit_packets_total",
		"Cumulative count of packets transmitted", func(i *Interface) uint64 { return i.TxPackets }),
	network("container_network_transmit_packets_dropped_total",
		"Cumulative count of packets dropped while transmitting", func(i *Interface) uint64 { return i.TxDropped }),
	network("container_network_transmit_errors_total",
		"Cumulative count of errors encountered while transmitting", func(i *Interface) uint64 { return i.TxErrors }),

	size64("container_processes",
		"Number of processes running inside the container.", func(u *Usage) uint64 { return u.Processes }),
	single("container_file_descriptors", "Number of open file descriptors for the container.", metrics.KindGauge,
		ofFiles(func(o *OpenFiles) count { return o.Files })),
	single("container_sockets", "Number of open sockets for the container.", metrics.KindGauge,
		ofFiles(func(o *OpenFiles) count { return o.Sockets })),
	{
		name: "container_ulimits_soft",
		help: "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice",
		kind: metrics.KindGauge,
		write: func(t *metrics.Text, g *group) {
			if g.open != nil && g.open.HasSoft {
				t.Rendered(g.open.Soft, 0, g.labels, "ulimit", "max_open_files")
			}
		},
	},
	size64("container_threads",
		"Number of threads running inside the container", func(u *Usage) uint64 { return u.Threads }),
	size64("container_threads_max",
		"Maximum number of threads allowed inside the container, infinity if value is zero",
		func(u *Usage) uint64 { return orZero(u.MaxThreads) }),

	stalled("container_pressure_cpu_stalled_seconds_total",
		"Total time duration no tasks in the container could make progress due to CPU congestion.",
		func(u *Usage) *api.PSIStats { return u.CPUPressure }, true),
	stalled("container_pressure_cpu_waiting_seconds_total",
		"Total time duration tasks in the container have waited due to CPU congestion.",
		func(u *Usage) *api.PSIStats { return u.CPUPressure }, false),
	stalled("container_pressure_memory_stalled_seconds_total",
		"Total time duration no tasks in the container could make progress due to memory congestion.",
		func(u *Usage) *api.PSIStats { return u.MemoryPressure }, true),
	stalled("container_pressure_memory_waiting_seconds_total",
		"Total time duration tasks in the container have waited due to memory congestion.",
		func(u *Usage) *api.PSIStats { return u.MemoryPressure }, false),
	stalled("container_pressure_io_stalled_seconds_total",
		"Total time duration no tasks in the container could make progress due to IO congestion.",
		func(u *Usage) *api.PSIStats { return u.IOPressure }, true),
	stalled("container_pressure_io_waiting_seconds_total",
		"Total time duration tasks in the container have waited due to IO congestion.",
		func(u *Usage) *api.PSIStats { return u.IOPressure }, false),

	birth("container_creation_time_seconds", "Container creation time since unix epoch in seconds."),
	birth("container_start_time_seconds", "Start time of the container since unix epoch in seconds."),
	single("container_last_seen", "Last time a container was seen by the exporter", metrics.KindGauge,
		func(g *group) (float64, bool) { return float64(g.use.At.Unix()), true }),
	single("container_spec_cpu_period", "CPU period of the container.", metrics.KindGauge,
		func(g *group) (float64, bool) { return float64(g.use.Period), g.use.HasSpecs }),
	single("container_spec_cpu_quota", "CPU quota of the container.", metrics.KindGauge,
		func(g *group) (float64, bool) { return float64(g.use.Quota), g.use.HasSpecs && g.use.Quota > 0 }),
	single("container_spec_cpu_shares", "CPU share of the container.", metrics.KindGauge,
		func(g *group) (float64, bool) { return float64(g.use.Shares), g.use.HasSpecs }),
	size64("container_spec_memory_limit_bytes",
		"Memory limit for the container.", func(u *Usage) uint64 { return orZero(u.MemoryLimit) }),
	size64("container_spec_memory_reservation_limit_bytes",
		"Memory reservation limit for the container.", func(u *Usage) uint64 { return orZero(u.Reservation) }),
	size64("container_spec_memory_swap_limit_bytes",
		"Memory swap limit for the container.", func(u *Usage) uint64 { return orZero(u.SwapLimit) }),
}

// ofFiles returns a value of cgroups whose open files are counted.
func ofFiles(of func(*OpenFiles) count) func(*group) (float64, bool) {
	return func(g *group) (float64, bool) {
		if g.open == nil || of(g.open).unknown {
			return 0, false
		}
		return float64(of(g.open).n), true
	}
}

// orZero returns 0 for no limit, as cAdvisor does.
func orZero(limit uint64) uint64 {
	if limit >= unlimited {
		return 0
	}
	return limit
}

func cpuTime(name, help string, of func(*Usage) uint64) family {
	return single(name, help, metrics.KindCounter,
		func(g *group) (float64, bool) { return float64(of(&g.use)) / float64(time.Second), g.use.HasCPU })
}

// quota returns a counter that only cgroups with a CPU quota have.
func quota(name, help string, of func(*Usage) float64) family {
	return single(name, help, metrics.KindCounter,
		func(g *group) (float64, bool) { return of(&g.use), g.use.Quota > 0 })
}

func birth(name, help string) family {
	return single(name, help, metrics.KindGauge,
		func(g *group) (float64, bool) { return float64(g.born.Unix()), !g.born.IsZero() })
}

func size64(name, help string, of func(*Usage) uint64) family {
	return single(name, help, metrics.KindGauge,
		func(g *group) (float64, bool) { return float64(of(&g.use)), g.use.HasMemory })
}

func count64(name, help string, of func(*Usage) uint64) family {
	f := size64(name, help, of)
	f.kind = metrics.KindCounter
	return f
}

func stalled(name, help string, of func(*Usage) *api.PSIStats, full bool) family {
	return single(name, help, metrics.KindCounter, func(g *group) (float64, bool) {
		p := of(&g.use)
		switch {
		case p == nil:
			return 0, false
		case full:
			return float64(p.Full.Total) / 1e9, true
		}
		return float64(p.Some.Total) / 1e9, true
	})
}

func writeFaults(t *metrics.Text, g *group) {
	if !g.use.HasMemory {
		return
	}
	for _, f := range []struct {
		kind, scope string
		value       uint64
	}{
		{"pgfault", "container", g.use.Faults}, {"pgmajfault", "container", g.use.MajorFaults},
		{"pgfault", "hierarchy", g.use.Tree.Faults}, {"pgmajfault", "hierarchy", g.use.Tree.MajorFaults},
	} {
		t.Rendered(float64(f.value), 0, g.labels, "failure_type", f.kind, "scope", f.scope)
	}
}

func deviceCount(name, help string, of func(*DeviceIO) uint64) family {
	return family{name: name, help: help, kind: metrics.KindCounter, write: func(t *metrics.Text, g *group) {
		for i := range g.use.IO {
			d := &g.use.IO[i]
			t.Rendered(float64(of(d)), 0, g.labels, "device", d.Device)
		}
	}}
}

func writeBlkio(t *metrics.Text, g *group) {
	for i := range g.use.IO {
		d := &g.use.IO[i]
		major, minor := strconv.FormatUint(d.Major, 10), strconv.FormatUint(d.Minor, 10)
		type operation struct {
			name  string
			value uint64
		}
		all := []operation{{"Read", d.ReadBytes}, {"Write", d.WriteBytes}}
		if d.hasSync {
			all = append(all, operation{"Sync", d.SyncBytes}, operation{"Async", d.AsyncBytes})
		}
		for _, o := range all {
			t.Rendered(float64(o.value), 0, g.labels, "device", d.Device, "major", major, "minor", minor, "operation", o.name)
		}
	}
}

func network(name, help string, of func(*Interface) uint64) family {
	return family{name: name, help: help, kind: metrics.KindCounter, write: func(t *metrics.Text, g *group) {
		for i := range g.network {
			t.Rendered(float64(of(&g.network[i])), 0, g.labels, "interface", g.network[i].Name)
		}
	}}
}
