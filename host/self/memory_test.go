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

func TestTrimWhenAtRest(t *testing.T) {
	const mib = 1 << 20
	var trim trimmer
	for i, step := range []struct {
		allocated uint64
		want      bool
		why       string
	}{
		{30 * mib, false, "the agent has just started"},
		{80 * mib, false, "a burst of pods"},
		{80*mib + 1000, true, "the burst is over"},
		{80*mib + 2000, false, "nothing to collect since the last trim"},
		{80*mib + mib/2, false, "less garbage than is worth a collection"},
		{81 * mib, false, "slow work"},
		{81*mib + mib/2, false, "slow work"},
		{82 * mib, false, "slow work"},
		{82*mib + mib/2, false, "slow work"},
		{83 * mib, false, "slow work"},
		{83*mib + mib/2, false, "slow work"},
		{84 * mib, false, "slow work"},
		{84*mib + mib/2, true, "slow work has left garbage"},
		{90 * mib, false, "the next burst"},
	} {
		if got := trim.due(step.allocated); got != step.want {
			t.Errorf("step %d, %s: got %t, want %t", i, step.why, got, step.want)
		}
	}
}
