package self

import (
	"runtime/debug"
	"testing"
)

func TestLimitHeap(t *testing.T) {
	before := debug.SetMemoryLimit(-1) // a negative value only reads
	defer debug.SetMemoryLimit(before)
	t.Setenv("GOMEMLIMIT", "")
	if limitHeap(0) || debug.SetMemoryLimit(-1) != before {
		t.Errorf("no limit of the cgroup: got %d, want %d", debug.SetMemoryLimit(-1), before)
	}
	t.Setenv("GOMEMLIMIT", "4GiB")
	if limitHeap(1<<30) || debug.SetMemoryLimit(-1) != before {
		t.Errorf("GOMEMLIMIT is set: got %d, want %d", debug.SetMemoryLimit(-1), before)
	}
	t.Setenv("GOMEMLIMIT", "")
	const want = 850_000_000
	if got := limitHeap(1_000_000_000); !got || debug.SetMemoryLimit(-1) != want {
		t.Errorf("limit of 1 GB: got %d, want %d", debug.SetMemoryLimit(-1), want)
	}
}
