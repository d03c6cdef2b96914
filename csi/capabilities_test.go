package csi_test

import (
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/plugins"
	"github.com/nodelet/nodelet/test/csi/fake"
)

// TestCapabilitiesOfNextProcess checks that a process which takes the place of a driver behind the same socket, without
// a registration, is asked for its capabilities until it answers.
func TestCapabilitiesOfNextProcess(t *testing.T) {
	t.Parallel()
	w := newUnstaging(t)
	w.accept()
	w.stopDriver()
	w.config = func(c *fake.Config) { c.Registry = "" }
	w.fail("NodeGetCapabilities", "Unavailable", 1)
	w.startDriver()
	w.stages()
}

// TestCapabilitiesWhileRegistering checks that a process which takes the place of a driver while that registers is
// asked for its capabilities: after the first of the two calls, and while the API server takes its time.
func TestCapabilitiesWhileRegistering(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]int32{"after the first call": 1, "at the API server": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newUnstaging(t)
			var steps atomic.Int32
			w.on = func() {
				if steps.Add(1) != at {
					return
				}
				w.stopDriver()
				time.Sleep(50 * time.Millisecond) // the agent knows that the connection is lost
				w.config = func(c *fake.Config) { c.Registry = "" }
				w.startDriver()
				if at == 3 {
					w.Until("the next process is asked", func() bool { return steps.Load() > at })
				}
			}
			w.accept()
			w.stages()
		})
	}
}

// newUnstaging returns a world whose driver does not register by itself. Its process cannot stage volumes.
func newUnstaging(t *testing.T) *world {
	w := newWorld(t, nil)
	w.Kill()
	w.stopDriver()
	w.begin()
	w.config = func(c *fake.Config) { c.Registry, c.NoStage = "", true }
	w.startDriver()
	return w
}

// stages waits until the agent stages the volume that it publishes, and takes it down.
func (w *world) stages() {
	w.T.Helper()
	v := w.volume("a")
	w.Until("a volume is staged", func() bool {
		_, err := w.csi.Publish(w.T.Context(), "pod-1", v)
		return err == nil && w.calls("NodeStageVolume") > 0
	})
	w.unpublish("pod-1", v)
	w.nothingLeft()
}

// accept registers the driver without a registrar, again if its connection is lost during a call.
func (w *world) accept() {
	w.T.Helper()
	w.Until("the driver is accepted", func() bool {
		_, err := w.csi.Accept(w.T.Context(), w.plugin())
		return err == nil
	})
}

// plugin returns how the driver registers.
func (w *world) plugin() plugins.Info {
	return plugins.Info{
		Type:     csi.PluginType,
		Name:     driverName,
		Versions: []string{"1.0.0"},
		Endpoint: filepath.Join(w.root, "plugins", driverName, "csi.sock"),
	}
}
