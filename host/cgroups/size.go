package cgroups

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nodelet/nodelet/host/cgroups/cpu"
	"github.com/nodelet/nodelet/host/cgroups/names"
)

// size reads CPU and memory of a cgroup.
func (t *Tree) size(n names.Name, want Resources) (Resources, error) {
	if t.v2 {
		return sizeV2(t.dirs(n)[""], want)
	}
	return sizeV1(t.dirs(n))
}

// sizeV1 reads CPU and memory from the directories of the controllers; it skips a controller that is not mounted.
func sizeV1(dirs map[string]string) (Resources, error) {
	var r Resources
	read := func(controller, file string, into *int64) error {
		dir, mounted := dirs[controller]
		if !mounted {
			return nil
		}
		text, err := os.ReadFile(filepath.Join(dir, file))
		if errors.Is(err, os.ErrNotExist) {
			return nil // the kernel has no such limit
		}
		if err == nil {
			*into, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		}
		return err
	}
	var shares, period int64
	for _, f := range []struct {
		controller, file string
		into             *int64
	}{
		{"cpu", "cpu.shares", &shares}, {"cpu", "cpu.cfs_quota_us", &r.CPUQuota}, {"cpu", "cpu.cfs_period_us", &period},
		{"memory", "memory.limit_in_bytes", &r.Memory},
	} {
		if err := read(f.controller, f.file, f.into); err != nil {
			return Resources{}, err
		}
	}
	r.CPUShares, r.CPUPeriod = uint64(max(0, shares)), uint64(max(0, period))
	if r.Memory >= unlimited {
		r.Memory = 0
	}
	r.CPUQuota = max(0, r.CPUQuota)
	return r, nil
}

// sizeV2 reads CPU and memory. It converts the weight to shares: those of want, if they have the same weight.
func sizeV2(dir string, want Resources) (Resources, error) {
	var r Resources
	text := func(file string) (string, error) {
		raw, err := os.ReadFile(filepath.Join(dir, file))
		if errors.Is(err, os.ErrNotExist) {
			return "", nil // the controller is off, so there is no limit
		}
		return strings.TrimSpace(string(raw)), err
	}
	number := func(s string) (int64, error) {
		if s == "max" || s == "" {
			return 0, nil
		}
		return strconv.ParseInt(s, 10, 64)
	}
	memory, err := text("memory.max")
	if err == nil {
		r.Memory, err = number(memory)
	}
	if err != nil {
		return Resources{}, err
	}
	bandwidth, err := text("cpu.max")
	if err != nil {
		return Resources{}, err
	}
	if quota, period, ok := strings.Cut(bandwidth, " "); ok {
		if r.CPUQuota, err = number(quota); err != nil {
			return Resources{}, err
		}
		if r.CPUPeriod, err = strconv.ParseUint(period, 10, 64); err != nil {
			return Resources{}, err
		}
	}
	cpuWeight, err := text("cpu.weight")
	if err != nil {
		return Resources{}, err
	}
	w, err := number(cpuWeight)
	r.CPUShares = leastShares(uint64(max(0, w)))
	if uint64(w) == weight(want.CPUShares) {
		r.CPUShares = want.CPUShares
	}
	return r, err
}

// PodMemoryUsage returns how many bytes of memory a pod's cgroup uses.
func (t *Tree) PodMemoryUsage(p Pod) (uint64, error) {
	n, err := t.pods.Pod(p.UID, p.QOS)
	if err != nil {
		return 0, err
	}
	controller, file := "memory", "memory.usage_in_bytes"
	if t.v2 {
		controller, file = "", "memory.current"
	}
	text, err := os.ReadFile(filepath.Join(t.dirs(n)[controller], file))
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}

// leastShares returns the smallest number of shares that has the given weight.
func leastShares(w uint64) uint64 {
	if w <= 1 {
		return cpu.MinShares
	}
	return cpu.MinShares + ((w-1)*shareSpan+weightSpan-1)/weightSpan
}

// asIn replaces the values of r that differ from want only by rounding with those of want: the kernel rounds memory to
// whole pages, and a CPU quota is rounded up to hundredths of a CPU for systemd.
func (r Resources) asIn(want Resources, systemd bool) Resources {
	if page := int64(os.Getpagesize()); want.Memory > 0 && want.Memory/page == r.Memory/page {
		r.Memory = want.Memory
	}
	if systemd && r.CPUQuota > 0 && r.CPUPeriod > 0 && want.CPUQuota > 0 && want.CPUPeriod > 0 {
		// In millionths of a CPU.
		has, wanted := r.CPUQuota*1e6/int64(r.CPUPeriod), want.CPUQuota*1e6/int64(want.CPUPeriod)
		if has >= wanted && has < wanted+1e4 {
			r.CPUQuota, r.CPUPeriod = want.CPUQuota, want.CPUPeriod
		}
	}
	return r
}
