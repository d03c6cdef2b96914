package csi_test

import (
	"testing"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/csi/fake"
)

// A driver's word on a volume comes with its figures, from drivers that watch their volumes.
func TestCondition(t *testing.T) {
	t.Parallel()
	for _, watches := range []bool{true, false} {
		w := newWorld(t, func(c *fake.Config) { c.Condition = watches })
		v := w.volume("a")
		w.publish("pod-1", v)
		look := func(want *csi.Condition) {
			t.Helper()
			got, ok, err := w.csi.Stats(t.Context(), "pod-1", v.Name)
			if err != nil || !ok || got.Bytes.Total == nil || (got.Condition == nil) != (want == nil) || want != nil && *got.Condition != *want {
				t.Errorf("got %+v, %t, %v, want %+v", got.Condition, ok, err, want)
			}
		}
		if !watches {
			look(nil)
		} else {
			look(&csi.Condition{Message: "as good as new"})
			if err := fake.Sicken(w.state, v.Handle, "the disk is on fire"); err != nil {
				t.Fatal(err)
			}
			look(&csi.Condition{Abnormal: true, Message: "the disk is on fire"})
		}
		w.unpublish("pod-1", v)
		w.nothingLeft()
	}
}
