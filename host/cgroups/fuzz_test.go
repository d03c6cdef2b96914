package cgroups

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzSize: whatever the files of a cgroup contain, the size that is read can be written.
func FuzzSize(f *testing.F) {
	f.Add("100 100000", "1048576", "39")
	f.Add("max 100000\n", "max\n", "10000\n")
	f.Add("-1", "9223372036854771712", "1024")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, cpuMax, memory, number string) {
		for name, text := range map[string]string{"cpu.max": cpuMax, "memory.max": memory, "cpu.weight": number,
			"cpu.shares": number, "cpu.cfs_quota_us": cpuMax, "cpu.cfs_period_us": number, "memory.limit_in_bytes": memory} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		v1, errV1 := sizeV1(map[string]string{"cpu": dir, "memory": dir})
		v2, errV2 := sizeV2(dir, Resources{CPUShares: 1024})
		for _, got := range []struct {
			Resources
			err error
		}{{v1, errV1}, {v2, errV2}} {
			if got.err == nil && (got.CPUQuota < 0 || got.Memory < 0) {
				t.Errorf("%q, %q, %q: got %+v", cpuMax, memory, number, got.Resources)
			}
		}
	})
}
