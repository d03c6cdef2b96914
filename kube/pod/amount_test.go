package pod_test

import (
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// TestAmount checks that amounts and their sums are exact up to the largest number, and stay there beyond it.
func TestAmount(t *testing.T) {
	for text, want := range map[string]struct{ cpu, memory int64 }{
		"0":                                   {0, 0},
		"-1":                                  {0, 0},
		"1500m":                               {1500, 2},
		"100Mi":                               {104857600000, 104857600},
		"9223372036854775":                    {9223372036854775000, 9223372036854775},
		"9223372036854776":                    {math.MaxInt64, 9223372036854776},
		"13835058055282163":                   {math.MaxInt64, 13835058055282163},
		"18446744073709552":                   {math.MaxInt64, 18446744073709552},
		"9223372036854775807":                 {math.MaxInt64, math.MaxInt64},
		"9223372036854775808":                 {math.MaxInt64, math.MaxInt64},
		"18446744073709551616":                {math.MaxInt64, math.MaxInt64},
		"16Ei":                                {math.MaxInt64, math.MaxInt64},
		"999999999999E":                       {math.MaxInt64, math.MaxInt64},
		"-9223372036854775809":                {0, 0},
		"340282366920938463463374607431768e9": {math.MaxInt64, math.MaxInt64},
	} {
		list := corev1.ResourceList{"cpu": resource.MustParse(text), "memory": resource.MustParse(text)}
		if cpu, memory := podutil.Amount(list, "cpu"), podutil.Amount(list, "memory"); cpu != want.cpu ||
			memory != want.memory {
			t.Errorf("%s: got %d m of CPU and %d bytes, want %+v", text, cpu, memory, want)
		}
	}
	if got := podutil.Amount(nil, "cpu"); got != 0 {
		t.Errorf("none: got %d, want 0", got)
	}
	for _, s := range [][3]int64{
		{1, 2, 3}, {math.MaxInt64, 0, math.MaxInt64}, {math.MaxInt64, 1, math.MaxInt64}, {1 << 62, 1 << 62, math.MaxInt64},
		{math.MaxInt64, math.MaxInt64, math.MaxInt64}, {math.MaxInt64, -1, math.MaxInt64 - 1}, {5, -7, -2},
	} {
		if a, b := podutil.Sum(s[0], s[1]), podutil.Sum(s[1], s[0]); a != s[2] || b != s[2] {
			t.Errorf("%d + %d: got %d and %d, want %d", s[0], s[1], a, b, s[2])
		}
	}
}

// FuzzAmount checks that no amount and no sum of amounts is negative, and none is less than a part of it.
func FuzzAmount(f *testing.F) {
	f.Add("4611686018427387904", "13835058055282163")
	f.Add("18446744073709551616", "100Gi")
	f.Fuzz(func(t *testing.T, a, b string) {
		p, errP := resource.ParseQuantity(a)
		q, errQ := resource.ParseQuantity(b)
		if errP != nil || errQ != nil {
			t.Skip()
		}
		for _, name := range podutil.ComputeResources {
			x := podutil.Amount(corev1.ResourceList{name: p}, name)
			y := podutil.Amount(corev1.ResourceList{name: q}, name)
			if sum := podutil.Sum(x, y); x < 0 || y < 0 || sum < x || sum < y || p.Cmp(q) > 0 && x < y {
				t.Errorf("%s of %s and %s: got %d, %d and the sum %d", name, a, b, x, y, sum)
			}
		}
	})
}
