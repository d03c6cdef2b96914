package metrics

import (
	"bytes"
	"context"
	"os"
	"runtime"
	runtimemetrics "runtime/metrics"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/machine"
)

// AddProcess adds the families of every Go process: process_*, and those of go_* that dashboards show. Reading them
// does not stop the world.
func AddProcess(r *Registry) {
	started := processStart()
	r.Func(func(_ context.Context, t *Text) { writeGo(t) })
	r.Func(func(_ context.Context, t *Text) { writeProcess(t, started) })
}

// AddProcessStart adds only process_start_time_seconds.
func AddProcessStart(r *Registry) {
	started := processStart()
	r.Func(func(_ context.Context, t *Text) {
		t.Gauge("process_start_time_seconds", "[ALPHA] Start time of the process since unix epoch in seconds.", started)
	})
}

// goMetrics are the metrics of the Go runtime, under the names of the Prometheus client: counters end with _total.
var goMetrics = []struct {
	name, help string
	of         []string // summed up
}{
	{"go_goroutines", "Number of goroutines that currently exist.", []string{"/sched/goroutines:goroutines"}},
	{"go_gomaxprocs", "The current runtime.GOMAXPROCS setting.", []string{"/sched/gomaxprocs:threads"}},
	{
		"go_gc_cycles_total_gc_cycles_total",
		"Count of all completed GC cycles.",
		[]string{"/gc/cycles/total:gc-cycles"},
	},
	{
		"go_memstats_alloc_bytes",
		"Number of bytes allocated in heap and currently in use.",
		[]string{"/memory/classes/heap/objects:bytes"},
	},
	{
		"go_memstats_alloc_bytes_total",
		"Total number of bytes allocated in heap until now, even if released already.",
		[]string{"/gc/heap/allocs:bytes"},
	},
	{
		"go_memstats_frees_total",
		"Total number of heap objects frees.",
		[]string{"/gc/heap/frees:objects", "/gc/heap/tiny/allocs:objects"},
	},
	{
		"go_memstats_heap_alloc_bytes",
		"Number of heap bytes allocated and currently in use.",
		[]string{"/memory/classes/heap/objects:bytes"},
	},
	{
		"go_memstats_heap_idle_bytes",
		"Number of heap bytes waiting to be used.",
		[]string{"/memory/classes/heap/released:bytes", "/memory/classes/heap/free:bytes"},
	},
	{
		"go_memstats_heap_inuse_bytes",
		"Number of heap bytes that are in use.",
		[]string{"/memory/classes/heap/objects:bytes", "/memory/classes/heap/unused:bytes"},
	},
	{
		"go_memstats_heap_objects",
		"Number of currently allocated objects.",
		[]string{"/gc/heap/objects:objects"},
	},
	{
		"go_memstats_heap_released_bytes",
		"Number of heap bytes released to OS.",
		[]string{"/memory/classes/heap/released:bytes"},
	},
	{
		"go_memstats_mallocs_total",
		"Total number of heap objects allocated, both live and gc-ed.",
		[]string{"/gc/heap/allocs:objects", "/gc/heap/tiny/allocs:objects"},
	},
	{
		"go_memstats_next_gc_bytes",
		"Number of heap bytes when next garbage collection will take place.",
		[]string{"/gc/heap/goal:bytes"},
	},
	{
		"go_memstats_stack_inuse_bytes",
		"Number of bytes obtained from system for stack allocator in non-CGO environments.",
		[]string{"/memory/classes/heap/stacks:bytes"},
	},
	{"go_memstats_sys_bytes", "Number of bytes obtained from system.", []string{"/memory/classes/total:bytes"}},
}

func writeGo(t *Text) {
	var samples []runtimemetrics.Sample
	for _, g := range goMetrics {
		for _, name := range g.of {
			samples = append(samples, runtimemetrics.Sample{Name: name})
		}
	}
	runtimemetrics.Read(samples)
	i := 0
	for _, g := range goMetrics {
		sum := 0.0
		for range g.of {
			if samples[i].Value.Kind() == runtimemetrics.KindUint64 {
				sum += float64(samples[i].Value.Uint64())
			}
			i++
		}
		kind := KindGauge
		if strings.HasSuffix(g.name, "_total") {
			kind = KindCounter
		}
		t.Family(g.name, g.help, kind)
		t.Sample(sum)
	}
	t.Gauge("go_info", "Information about the Go environment.", 1, "version", runtime.Version())
	t.Gauge("go_threads", "Number of OS threads created.", float64(statField(20)))
}

func writeProcess(t *Text, started float64) {
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &usage) == nil {
		cpuTime := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
		t.Family("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", KindCounter)
		t.Sample(cpuTime.Seconds())
	}
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil {
		t.Gauge("process_max_fds", "Maximum number of open file descriptors.", float64(files.Cur))
	}
	if entries, err := os.ReadDir("/proc/self/fd"); err == nil {
		t.Gauge("process_open_fds", "Number of open file descriptors.", float64(len(entries)-1))
	}
	t.Gauge("process_resident_memory_bytes", "Resident memory size in bytes.",
		float64(statField(24)*int64(os.Getpagesize())))
	t.Gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", started)
	t.Gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", float64(statField(23)))
}

// ticks is USER_HZ, the unit of times in /proc/PID/stat; it is 100 on every Linux that Go runs on.
const ticks = 100

// processStart returns the start time of this process in seconds since 1970.
func processStart() float64 {
	var boot int64
	if text, err := os.ReadFile("/proc/stat"); err == nil {
		for line := range bytes.Lines(text) {
			if rest, ok := bytes.CutPrefix(line, []byte("btime ")); ok {
				boot, _ = strconv.ParseInt(string(bytes.TrimSpace(rest)), 10, 64)
			}
		}
	}
	return float64(boot) + float64(statField(22))/ticks
}

// statField returns a field of /proc/self/stat by its number in proc(5); 0 if it cannot be read.
func statField(number int) int64 {
	text, err := machine.ProcessStat(os.Getpid(), number)
	if err != nil {
		return 0
	}
	v, _ := strconv.ParseInt(text, 10, 64)
	return v
}
