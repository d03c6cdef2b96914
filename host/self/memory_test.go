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
		live      uint64
		rest      bool
		want      bool
		why       string
	}{
		{30 * mib, 2 * mib, false, false, "the agent has just started"},
		{80 * mib, 3 * mib, false, false, "a burst of pods"},
		{80*mib + 1000, 3 * mib, true, true, "the burst is over"},
		{80*mib + 2000, 3 * mib, true, false, "nothing to collect since the last trim"},
		{80*mib + mib/2, 3 * mib, true, false, "less garbage than is worth a collection"},
		{81 * mib, 3 * mib, true, false, "slow work"},
		{82 * mib, 3 * mib, true, false, "slow work"},
		{83 * mib, 3 * mib, true, false, "slow work"},
		{84 * mib, 3 * mib, true, false, "slow work"},
		{84*mib + mib/2, 3 * mib, true, true, "slow work has left garbage"},
		{86 * mib, 3 * mib, false, false, "work"},
		{160 * mib, 8 * mib, false, false, "a burst of pods that stay"},
		{162 * mib, 8 * mib, true, true, "the burst is over, and an agent with many pods allocates more at rest"},
		{166 * mib, 8 * mib, false, false, "work"},
		{167 * mib, 8 * mib, true, false, "less garbage than is worth the collections of a large heap"},
		{170 * mib, 8 * mib, true, true, "slow work has left garbage"},
	} {
		if rest, got := trim.look(step.allocated, step.live, 100, lookAtRest); rest != step.rest || got != step.want {
			t.Errorf("step %d, %s: got at rest %t, trimmed %t, want %t, %t", i, step.why, rest, got, step.rest, step.want)
		}
	}
}

// TestGoroutinesThatEnd checks that an agent at rest is trimmed once more when many goroutines have ended since: they
// were at rest as well, such as those of 500 clients that follow a log, and what they held is garbage.
func TestGoroutinesThatEnd(t *testing.T) {
	const live = 20 << 20
	var trim trimmer
	for i, step := range []struct {
		allocated, goroutines uint64
		want                  bool
		why                   string
	}{
		{60 << 20, 1600, false, "clients come"},
		{61 << 20, 1600, true, "they only follow"},
		{62 << 20, 1590, false, "some have gone"},
		{63 << 20, 80, true, "all have gone"},
		{64 << 20, 70, false, "a few goroutines fewer"},
	} {
		if _, got := trim.look(step.allocated, live, step.goroutines, lookAtWork); got != step.want {
			t.Errorf("step %d, %s: got trimmed %t, want %t", i, step.why, got, step.want)
		}
	}
}

// TestRestAfterWork checks that the first look after work finds the agent at rest, and that none during slow work does,
// however often it looks.
func TestRestAfterWork(t *testing.T) {
	const live = 8 << 20
	var trim trimmer
	if rest, _ := trim.look(live/4, live, 100, lookAtWork); rest {
		t.Error("slow work: got at rest, want at work")
	}
	if rest, due := trim.look(live/4+live/16, live, 100, lookAtWork); !rest || due {
		t.Errorf("after slow work: got at rest %t, trimmed %t, want only at rest", rest, due)
	}
	if rest, due := trim.look(2*live, live, 100, lookAtRest); rest || due {
		t.Errorf("a burst of pods: got at rest %t, trimmed %t, want neither", rest, due)
	}
	if rest, due := trim.look(2*live+live/16, live, 100, lookAtWork); !rest || !due {
		t.Errorf("5 s after the burst: got at rest %t, trimmed %t, want both", rest, due)
	}
}
