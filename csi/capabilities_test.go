package csi_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/plugins"
	"github.com/nodelet/nodelet/test/csi/fake"
)

// TestCapabilitiesOfNextProcess checks that a process which takes the place of a driver behind the same socket, without
// a registration, is asked for its capabilities until it answers.
func TestCapabilitiesOfNextProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.Kill()
	w.stopDriver()
	w.begin()
	w.config = func(c *fake.Config) { c.Registry, c.NoStage = "", true }
	w.startDriver()
	w.accept()
	w.stopDriver()
	w.config = func(c *fake.Config) { c.Registry = "" }
	w.fail("NodeGetCapabilities", "Unavailable", 1)
	w.startDriver()
	v := w.volume("a")
	w.Until("a volume is staged", func() bool {
		_, err := w.csi.Publish(t.Context(), "pod-1", v)
		return err == nil && w.calls("NodeStageVolume") > 0
	})
	w.unpublish("pod-1", v)
	w.nothingLeft()
}

// TestCapabilitiesWhileRegistering checks that a process which takes the place of a driver is asked also while the
// registration of the driver still goes on: the API server may take its time.
func TestCapabilitiesWhileRegistering(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.Kill()
	w.stopDriver()
	w.begin()
	w.config = func(c *fake.Config) { c.Registry = "" }
	w.startDriver()
	w.onAdd = func() {
		w.mu.Lock()
		w.called = nil
		w.mu.Unlock()
		w.stopDriver()
		w.startDriver()
		w.Until("the next process is asked", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return slices.Contains(w.called, "NodeGetCapabilities of "+driverName+": OK")
		})
	}
	w.accept()
}

// accept registers the driver without a registrar.
func (w *world) accept() {
	w.T.Helper()
	if _, err := w.csi.Accept(w.T.Context(), plugins.Info{
		Type:     csi.PluginType,
		Name:     driverName,
		Versions: []string{"1.0.0"},
		Endpoint: filepath.Join(w.root, "plugins", driverName, "csi.sock"),
	}); err != nil {
		w.T.Fatal(err)
	}
}
