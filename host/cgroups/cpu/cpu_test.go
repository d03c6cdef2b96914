package cpu_test

import (
	"testing"

	"github.com/nodelet/nodelet/host/cgroups/cpu"
)

func TestShares(t *testing.T) {
	for milli, want := range map[int64]int64{
		-1: 2, 0: 2, 1: 2, 2: 2, 3: 3, 100: 102, 1000: 1024, 1500: 1536, 256000: 262144, 1 << 40: 262144,
		1 << 62: 262144,
	} {
		if got := cpu.Shares(milli); got != want {
			t.Errorf("Shares(%d): got %d, want %d", milli, got, want)
		}
	}
}

func TestMilli(t *testing.T) {
	for _, milli := range []int64{2, 3, 100, 999, 1000, 1001, 1500, 256000} {
		if got := cpu.Milli(cpu.Shares(milli)); got != milli {
			t.Errorf("Milli(Shares(%d)): got %d", milli, got)
		}
	}
}

func TestQuota(t *testing.T) {
	for _, c := range []struct{ milli, period, want int64 }{
		{0, 100000, 0}, {1, 100000, 1000}, {10, 100000, 1000}, {11, 100000, 1100}, {2000, 100000, 200000},
		{1000, 10000, 10000}, {50, 10000, 1000}, {500, 5000, 2500},
		{1 << 62, 100000, 1<<44 - 1}, {1e18, 1e6, 1<<44 - 1},
	} {
		if got := cpu.Quota(c.milli, c.period); got != c.want {
			t.Errorf("Quota(%d, %d): got %d, want %d", c.milli, c.period, got, c.want)
		}
	}
}
