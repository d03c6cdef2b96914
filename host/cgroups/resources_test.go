package cgroups

import (
	"math"
	"testing"
)

// TestWeight checks the kubelet's conversion for pods and classes: 1 + (shares-2)*9999/262142.
func TestWeight(t *testing.T) {
	for shares, want := range map[uint64]uint64{0: 0, 1: 1, 2: 1, 102: 4, 1024: 39, 262144: 10000, math.MaxUint64: 10000} {
		if got := weight(shares); got != want {
			t.Errorf("weight(%d): got %d, want %d", shares, got, want)
		}
	}
}

func TestSpec(t *testing.T) {
	r := Resources{
		CPUShares: 1024,
		CPUQuota:  5000,
		CPUPeriod: 100000,
		Memory:    1 << 20,
		Pids:      10,
		HugePages: map[int64]int64{2 << 20: 4 << 20},
		Unified:   map[string]string{"memory.low": "1"},
	}
	v1 := (&Tree{hugetlb: true, pageSizes: []int64{2 << 20, 1 << 30}}).spec(r)
	if v1.CpuShares != 1024 || v1.CpuWeight != 0 || v1.Unified != nil || *v1.PidsLimit != 10 || v1.Memory != 1<<20 {
		t.Errorf("v1: got %+v, want shares and no weight", v1)
	}
	if len(v1.HugetlbLimit) != 2 || *v1.HugetlbLimit[0] != struct {
		Pagesize string `json:"page_size"`
		Limit    uint64 `json:"limit"`
	}{"2MB", 4 << 20} || v1.HugetlbLimit[1].Pagesize != "1GB" || v1.HugetlbLimit[1].Limit != 0 {
		t.Errorf("v1 huge pages: got %+v %+v, want 4 MiB of 2MB and none of 1GB", v1.HugetlbLimit[0], v1.HugetlbLimit[1])
	}
	v2 := (&Tree{v2: true}).spec(r)
	if v2.CpuShares != 0 || v2.CpuWeight != 39 || v2.Unified["memory.low"] != "1" || v2.HugetlbLimit != nil {
		t.Errorf("v2: got %+v, want weight 39 and memory.low", v2)
	}
	empty := (&Tree{v2: true, hugetlb: true, pageSizes: []int64{2 << 20}}).spec(Resources{})
	if empty.CpuWeight != 0 || empty.PidsLimit != nil || empty.Memory != 0 || empty.HugetlbLimit != nil {
		t.Errorf("nothing to set: got %+v, want it empty", empty)
	}
}
