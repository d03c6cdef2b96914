package plan

import (
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestWaveOf: below the lowest, between, at a border and above the highest.
func TestWaveOf(t *testing.T) {
	times := []WaveTime{{0, 30 * time.Second}, {1000, 20 * time.Second}, {2000000000, 10 * time.Second}}
	for priority, want := range map[int32]int{math.MinInt32: 0, -1: 0, 0: 0, 999: 0, 1000: 1, 1001: 1, 2000000000: 2, math.MaxInt32: 2} {
		if got := WaveOf(times, &corev1.Pod{Spec: corev1.PodSpec{Priority: &priority}}); got != want {
			t.Errorf("priority %d ends in wave %d, want %d", priority, got, want)
		}
	}
	if got := WaveOf(times, &corev1.Pod{}); got != 0 {
		t.Errorf("a pod without a priority ends in wave %d", got)
	}
	short, long := int64(5), int64(500)
	for grace, want := range map[*int64]time.Duration{&short: 5 * time.Second, &long: 20 * time.Second, nil: 20 * time.Second} {
		if got := ShutdownGrace(times[1], &corev1.Pod{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: grace}}); got != want {
			t.Errorf("grace %s, want %s", got, want)
		}
	}
}
