package pressure

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// proc creates a directory with these files, to be used as /proc.
func proc(t *testing.T, files map[string]string) Proc {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Proc(dir)
}

func TestLevels(t *testing.T) {
	p := proc(t, map[string]string{
		// 280 KiB of the kernel, of which it can give back most, are not counted as used.
		"meminfo": "MemTotal:  1000 kB\nMemFree: 100 kB\nMemAvailable: 390 kB\nBuffers: 20 kB\nCached: 180 kB\n" +
			"SwapCached: 10 kB\nInactive(anon): 5 kB\nInactive(file): 50 kB\nAnonPages: 310 kB\nSlab: 280 kB\n" +
			"SReclaimable: 250 kB\nHugePages_Total: 50\nHugetlb: 100 kB\n",
		"loadavg": "0.20 0.18 0.12 1/80 11206\n", "sys/kernel/pid_max": "32768\n", "sys/kernel/threads-max": "1000\n",
	})
	if l, err := p.Memory(); err != nil || l != (Level{Available: 430 << 10, Capacity: 900 << 10}) {
		t.Errorf("memory: got %+v, %v, want 430 of 900 KiB", l, err)
	}
	if l, err := p.Processes(); err != nil || l != (Level{Available: 920, Capacity: 1000}) {
		t.Errorf("processes: got %+v, %v, want %+v", l, err, (Level{Available: 920, Capacity: 1000}))
	}
	for name, broken := range map[string]Proc{
		"no files": proc(t, nil),
		"no numbers": proc(t, map[string]string{
			"meminfo":                "MemTotal: x kB\n",
			"loadavg":                "0 0 0 x",
			"sys/kernel/pid_max":     "1",
			"sys/kernel/threads-max": "1",
		}),
		"incomplete": proc(t, map[string]string{
			"meminfo":                "MemTotal: 5 kB\n",
			"loadavg":                "0 0",
			"sys/kernel/pid_max":     "1",
			"sys/kernel/threads-max": "1",
		}),
	} {
		if _, err := broken.Memory(); err == nil {
			t.Errorf("%s: Memory: got no error, want one", name)
		}
		if _, err := broken.Processes(); err == nil {
			t.Errorf("%s: Processes: got no error, want one", name)
		}
	}
}

// TestHugePages checks that an idle node is far above a threshold of 15 %, although more than 85 % of its memory are
// huge pages.
func TestHugePages(t *testing.T) {
	l, err := proc(t, map[string]string{"meminfo": "MemTotal: 64000 kB\nBuffers: 0 kB\nCached: 1000 kB\n" +
		"Inactive(file): 500 kB\nAnonPages: 500 kB\nHugetlb: 56000 kB\n"}).Memory()
	if want := (Level{Available: 7000 << 10, Capacity: 8000 << 10}); err != nil || l != want {
		t.Errorf("got %+v, %v, want %+v", l, err, want)
	}
}

// TestThisMachine reads the machine that the test runs on.
func TestThisMachine(t *testing.T) {
	var p Proc
	for what, read := range map[string]func() (Level, error){"memory": p.Memory, "processes": p.Processes} {
		if l, err := read(); err != nil || l.Available <= 0 || l.Available >= l.Capacity {
			t.Errorf("%s: got %+v, %v, want less than the capacity", what, l, err)
		}
	}
	bytes, inodes, name, err := Disk(t.TempDir())
	if err != nil || bytes.Available > bytes.Capacity || bytes.Capacity <= 0 || inodes.Available > inodes.Capacity ||
		name == "" {
		t.Errorf("disk: got %+v %+v %q %v, want less than the capacity, and a name", bytes, inodes, name, err)
	}
	if _, _, _, err := Disk("/no/such/place"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestWatchMemoryEnds checks that the watch ends with its context at once, also without memory pressure.
func TestWatchMemoryEnds(t *testing.T) {
	if err := proc(t, nil).WatchMemory(t.Context(), func() {}); err == nil {
		t.Error("a kernel without pressure stall information: got no error, want one")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // by then it most often waits
	defer cancel()
	err := Proc("").WatchMemory(ctx, func() {})
	if _, ok := errors.AsType[*os.PathError](err); ok {
		t.Skip("this kernel does not tell: ", err)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
	}
}
