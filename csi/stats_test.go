package csi_test

import (
	"testing"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/test/csi/fake"
)

// TestCondition checks that the condition of a volume comes with its stats, as in CSI 1.12 and as in 1.13, where
// volume health is enabled.
func TestCondition(t *testing.T) {
	t.Parallel()
	const sickness = "the disk is on fire"
	for _, c := range []struct {
		driver     func(*fake.Config)
		ask        bool
		well, sick *csi.Condition
	}{
		{func(c *fake.Config) { c.Condition = true }, true, &csi.Condition{Message: "as good as new"},
			&csi.Condition{Abnormal: true, Message: sickness}},
		{func(c *fake.Config) { c.Health = true }, true, &csi.Condition{},
			&csi.Condition{Abnormal: true, Message: "DEGRADED Sick: " + sickness}},
		{func(c *fake.Config) { c.Health, c.Condition = true, true }, false, nil, nil},
		{func(*fake.Config) {}, true, nil, nil},
	} {
		w := newWorld(t, c.driver)
		w.Kill()
		w.health = c.ask
		w.begin()
		v := w.volume("a")
		w.publish("pod-1", v)
		look := func(want *csi.Condition) {
			t.Helper()
			got, ok, err := w.csi.Stats(t.Context(), "pod-1", v.Name)
			if err != nil || !ok || got.Bytes.Total == nil || (got.Condition == nil) != (want == nil) || want != nil &&
				*got.Condition != *want {
				t.Errorf("got %+v, %t, %v, want %+v", got.Condition, ok, err, want)
			}
		}
		look(c.well)
		if err := fake.Sicken(w.state, v.Handle, sickness); err != nil {
			t.Fatal(err)
		}
		look(c.sick)
		w.unpublish("pod-1", v)
		w.nothingLeft()
	}
}
