package shutdown

import (
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/config"
)

// TestGroupOf checks priorities below the lowest, between, at a border and above the highest.
func TestGroupOf(t *testing.T) {
	groups := []config.PriorityGrace{
		{Priority: 0, Grace: 30 * time.Second},
		{Priority: 1000, Grace: 20 * time.Second},
		{Priority: 2000000000, Grace: 10 * time.Second},
	}
	for priority, want := range map[int32]int{
		math.MinInt32: 0, -1: 0, 0: 0, 999: 0, 1000: 1, 1001: 1, 2000000000: 2, math.MaxInt32: 2,
	} {
		if got := groupOf(groups, &corev1.Pod{Spec: corev1.PodSpec{Priority: &priority}}); got != want {
			t.Errorf("priority %d: got group %d, want %d", priority, got, want)
		}
	}
	if got := groupOf(groups, &corev1.Pod{}); got != 0 {
		t.Errorf("no priority: got group %d, want 0", got)
	}
}
