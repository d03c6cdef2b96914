package shutdown

import (
	"math"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/config"
)

// TestGroups checks the groups of both forms of the settings, that they are sorted, and that the feature gate switches
// them off.
func TestGroups(t *testing.T) {
	old, byPriority := &config.Config{}, &config.Config{}
	old.Kubelet.ShutdownGracePeriod.Duration = 30 * time.Second
	old.Kubelet.ShutdownGracePeriodCriticalPods.Duration = 10 * time.Second
	byPriority.Kubelet.ShutdownGracePeriodByPodPriority = []config.PriorityShutdown{
		{Priority: 1000, ShutdownGracePeriodSeconds: 20},
		{Priority: -1, ShutdownGracePeriodSeconds: 5},
	}
	off := &config.Config{Kubelet: byPriority.Kubelet}
	off.Kubelet.FeatureGates = map[string]bool{"GracefulNodeShutdown": false}
	for name, c := range map[string]struct {
		config *config.Config
		want   []Group
	}{
		"gate off":       {off, nil},
		"none":           {&config.Config{}, nil},
		"pair of fields": {old, []Group{{0, 20 * time.Second}, {2_000_000_000, 10 * time.Second}}},
		"by priority":    {byPriority, []Group{{-1, 5 * time.Second}, {1000, 20 * time.Second}}},
	} {
		if got := Groups(c.config); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// TestGroupOf checks priorities below the lowest, between, at a border and above the highest.
func TestGroupOf(t *testing.T) {
	groups := []Group{
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
