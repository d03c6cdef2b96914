package config

import "testing"

// TestEventQPS checks that eventRecordQPS 0 means no limit, and not the default of client-go.
func TestEventQPS(t *testing.T) {
	for configured, want := range map[int32]float32{7: 7, 0: -1} {
		c := Config{Kubelet: KubeletConfiguration{EventRecordQPS: &configured}}
		if got := c.EventQPS(); got != want {
			t.Errorf("%d: got %v events a second, want %v", configured, got, want)
		}
	}
}
