package csi_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/plugins"
	"github.com/nodelet/nodelet/test/csi/fake"
)

// TestRegistration checks that a driver reports the node when it registers, and is notified; when its socket is
// removed, it is unregistered.
func TestRegistration(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	want := csi.DriverInfo{Name: driverName, NodeID: "node", MaxVolumes: 7}
	got := w.csi.Drivers()[0]
	if got.Name != want.Name || got.NodeID != want.NodeID || got.MaxVolumes != 7 ||
		got.Topology[fake.TopologyKey] != "node" {
		t.Errorf("got %+v", got)
	}
	w.Until("the driver is notified", func() bool {
		all := w.driver.Registrations()
		return len(all) > 0 && all[0].PluginRegistered
	})
	w.stopDriver()
	w.Until("the driver is forgotten", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.gone) == 1 })
	w.startDriver()
	w.Until("the driver is registered again", func() bool { return len(w.csi.Drivers()) == 1 })
}

// TestCalled checks that each call to a driver is passed on with its result, for metrics.
func TestCalled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	w.fail("NodePublishVolume", "ResourceExhausted", 1)
	if _, err := w.csi.Publish(t.Context(), "pod-1", v); err == nil {
		t.Error("got no error, want that of the driver")
	}
	w.publish("pod-1", v)
	if driver, block := w.csi.Driver("pod-1", v.Name); driver != driverName || block {
		t.Errorf("driver of the volume: got %q, block %t, want %q, false", driver, block, driverName)
	}
	w.unpublish("pod-1", v)
	w.nothingLeft()
	w.mu.Lock()
	defer w.mu.Unlock()
	var want []string
	for _, call := range []string{"NodeGetInfo OK", "NodeGetCapabilities OK", "NodeStageVolume OK",
		"NodePublishVolume ResourceExhausted", "NodePublishVolume OK", "NodeUnpublishVolume OK", "NodeUnstageVolume OK"} {
		method, code, _ := strings.Cut(call, " ")
		want = append(want, method+" of "+driverName+": "+code)
	}
	if !slices.Equal(w.called, want) {
		t.Errorf("got the calls %q, want %q", w.called, want)
	}
}

// TestDriverMoves checks that a driver which registers at another socket, while the old one goes, stays reported.
func TestDriverMoves(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.Kill()
	var reported bool
	meanwhile := func() {}
	c, err := csi.New(csi.Config{
		Root: w.root, NodeName: "node", BootID: w.boot, Log: slog.New(slog.DiscardHandler), Limits: w.limits, Wake: w.Wake,
		Registered: func(context.Context, csi.DriverInfo) error { reported = true; meanwhile(); return nil },
		Gone:       func(context.Context, string) { reported = false },
		Called:     func(string, string, time.Duration, error) {},
		Changed:    func() {},
	})
	if err != nil {
		t.Fatal(err)
	}
	accept := func() (dismiss func(context.Context)) {
		dismiss, err := c.Accept(t.Context(), plugins.Info{
			Type:     csi.PluginType,
			Name:     driverName,
			Versions: []string{"1.0.0"},
			Endpoint: filepath.Join(w.root, "plugins", driverName, "csi.sock"),
		})
		if err != nil {
			t.Fatal(err)
		}
		return dismiss
	}
	dismiss := accept()
	dismissed := make(chan struct{})
	meanwhile = func() {
		go func() { dismiss(t.Context()); close(dismissed) }()
		for range 10000 { // enough for a dismissal that does not wait
			runtime.Gosched()
		}
	}
	accept()
	<-dismissed
	if n := len(c.Drivers()); n != 1 || !reported {
		t.Errorf("got %d drivers, reported %t, want one that is reported", n, reported)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// registeredTwice returns a world whose driver is registered twice, and how the newer registration is dismissed. The
// earlier one was reported with a limit of 7 volumes, the newer one with 6.
func registeredTwice(t *testing.T) (w *world, dismiss func(context.Context)) {
	t.Helper()
	w = newWorld(t, nil)
	w.untilLimit(7)
	w.driver.SetMaxVolumes(6)
	dismiss, err := w.csi.Accept(t.Context(), w.plugin())
	if err != nil {
		t.Fatal(err)
	}
	return w, dismiss
}

// refuseTwo refuses the reports that begin makes the agent send, until two have failed.
func (w *world) refuseTwo(begin func()) {
	w.T.Helper()
	w.mu.Lock()
	w.refuse = errors.New("no CSINode for you")
	before := len(w.infos)
	w.mu.Unlock()
	begin()
	w.Until("two reports have failed", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.infos) > before+1 })
	w.mu.Lock()
	w.refuse = nil
	w.mu.Unlock()
}

// TestDriverRegisteredTwice checks that the newer registration of a driver serves, and alone is reported; when its
// socket goes, the earlier one, which is still there, serves and is asked and reported again.
func TestDriverRegisteredTwice(t *testing.T) {
	t.Parallel()
	w, dismiss := registeredTwice(t)
	w.untilLimit(6)
	w.driver.SetMaxVolumes(5)
	asked := w.driver.Asked()
	w.setPeriod(time.Millisecond)
	w.Until("each of the two is asked by period", func() bool { return w.driver.Asked() > asked+20 })
	dismiss(t.Context())
	w.setPeriod(0)
	w.publish("pod-1", w.volume("a"))
	w.unpublish("pod-1", w.volume("a"))
	w.Until("the first is reported", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.infos) > 3 })
	w.mu.Lock()
	defer w.mu.Unlock()
	var limits []int64
	for _, info := range w.infos {
		limits = append(limits, info.MaxVolumes)
	}
	want := []int64{7, 6, 5, 5} // of the first, twice of the second, of the first
	if !slices.Equal(limits, want) || len(w.gone) != 0 {
		t.Errorf("got the limits %v and gone %v, want %v and none gone", limits, w.gone, want)
	}
}

// TestEarlierRegistrationDoesNotAnswer checks that a driver is reported as gone while the earlier registration, which
// serves again, does not answer, and as registered when it does, also if the first reports fail.
func TestEarlierRegistrationDoesNotAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	earlier := w.plugin()
	earlier.Endpoint = filepath.Join(w.root, "plugins/earlier.sock")
	start := func() *fake.Driver {
		d, err := fake.Start(fake.Config{
			Name:       driverName,
			NodeID:     "node",
			State:      filepath.Join(w.state, "earlier"),
			Socket:     earlier.Endpoint,
			MaxVolumes: 3,
		})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	driver := start()
	_, err := w.csi.Accept(t.Context(), earlier)
	if err != nil {
		t.Fatal(err)
	}
	dismiss, err := w.csi.Accept(t.Context(), w.plugin())
	if err != nil {
		t.Fatal(err)
	}
	driver.Close()
	dismiss(t.Context())
	w.Until("the driver is reported as gone", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.gone) > 0 })
	w.refuseTwo(func() {
		driver = start()
		t.Cleanup(driver.Close)
	})
	w.Until("the driver is reported", func() bool { return w.csi.Drivers()[0].MaxVolumes == 3 })
}

// TestEarlierRegistrationIsNotReported checks that a driver whose earlier registration serves again and answers is not
// reported as gone if only the report fails.
func TestEarlierRegistrationIsNotReported(t *testing.T) {
	t.Parallel()
	w, dismiss := registeredTwice(t)
	w.driver.SetMaxVolumes(5)
	w.refuseTwo(func() { dismiss(t.Context()) })
	w.Until("the driver is reported", func() bool { return w.csi.Drivers()[0].MaxVolumes == 5 })
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.gone) > 0 {
		t.Errorf("got %q reported as gone, want none", w.gone)
	}
}

// TestRegistrationRefused checks that the driver is notified of a refused registration, which is then retried.
func TestRegistrationRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.Kill()
	w.refuse = errors.New("no CSINode for you")
	w.begin()
	w.Until("the driver is notified", func() bool {
		for _, s := range w.driver.Registrations() {
			if !s.PluginRegistered && strings.Contains(s.Error, "no CSINode for you") {
				return true
			}
		}
		return false
	})
	w.mu.Lock()
	w.refuse = nil
	w.mu.Unlock()
	w.Until("the driver is registered", func() bool { return len(w.csi.Drivers()) == 1 })
}

// TestSocketsBelow checks that sockets in sub-directories count, hidden ones and plain files do not.
func TestSocketsBelow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	if err := os.WriteFile(filepath.Join(w.root, "plugins_registry", "file.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	other, err := fake.Start(fake.Config{
		Name:     "other.csi.nodelet.test",
		NodeID:   "node",
		State:    filepath.Join(w.state, "other"),
		Socket:   filepath.Join(w.root, "plugins/other.sock"),
		Registry: filepath.Join(w.root, "plugins_registry/deep/below"),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	hidden, err := fake.Start(fake.Config{
		Name:     "hidden.csi.nodelet.test",
		NodeID:   "node",
		State:    filepath.Join(w.state, "hidden"),
		Socket:   filepath.Join(w.root, "plugins/hidden.sock"),
		Registry: filepath.Join(w.root, "plugins_registry/.hidden"),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer hidden.Close()
	w.Until("the other driver is registered", func() bool { return len(w.csi.Drivers()) == 2 })
	if len(hidden.Registrations()) > 0 {
		t.Error("a driver with a hidden socket: got it registered, want it ignored")
	}
}

// TestDriverMissing checks that Publish names the driver that is not registered, and the pod is woken when it
// registers.
func TestDriverMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	w.stopDriver()
	w.Until("the driver is forgotten", func() bool { return len(w.csi.Drivers()) == 0 })
	_, err := w.csi.Publish(t.Context(), "pod-1", v)
	if err == nil || !strings.Contains(err.Error(), driverName+" is not registered") {
		t.Errorf("got %v", err)
	}
	if len(w.csi.Pods()) != 0 {
		t.Error("got a claim of a volume for which nothing can be done, want none")
	}
	w.startDriver()
	w.Until("the pod is woken", func() bool { return slices.Contains(w.Woken(), types.UID("pod-1")) })
	w.publish("pod-1", v)
	w.unpublish("pod-1", v)
	w.nothingLeft()
}

// TestAllWaitForDriver checks that all pods with a volume wait for its driver at the same time, and are woken when it
// registers: none waits until others have given up.
func TestAllWaitForDriver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	steps := map[types.UID]func(pod types.UID) error{}
	for _, pod := range []types.UID{"pod-1", "pod-2"} {
		steps[pod] = func(pod types.UID) error { return w.csi.Unpublish(t.Context(), pod, v.Name) }
	}
	for _, pod := range []types.UID{"pod-3", "pod-4"} {
		steps[pod] = func(pod types.UID) error { return w.csi.Expand(t.Context(), pod, v, 2<<20, nil) }
	}
	for pod := range steps {
		w.publish(pod, v)
	}
	w.stopDriver()
	w.Until("the driver is forgotten", func() bool { return len(w.csi.Drivers()) == 0 })
	ended := make(chan error, len(steps))
	for pod, step := range steps {
		go func() { ended <- step(pod) }()
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "is not registered") {
		t.Errorf("the first that gives up: got %v, want that the driver is not registered", err)
	}
	w.startDriver()
	w.Until("all pods are woken", func() bool {
		woken := w.Woken()
		for pod := range steps {
			if !slices.Contains(woken, pod) {
				return false
			}
		}
		return true
	})
	for range len(steps) - 1 {
		<-ended // an error, if it gave up before the driver was there
	}
	for pod := range steps {
		w.unpublish(pod, v)
	}
	w.nothingLeft()
}

// TestUnstageWaitsForDriver checks that what was staged when the driver left is unstaged when it is back, without a
// pod that asks for it.
func TestUnstageWaitsForDriver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	w.publish("pod-1", v)
	w.fail("NodeUnstageVolume", "Unavailable", 0)
	w.unpublish("pod-1", v)
	w.Until("it was tried", func() bool { return w.calls("NodeUnstageVolume") > 0 })
	if len(w.csi.InUse()) != 1 {
		t.Error("a staged volume: got that it is not in use, want that it is")
	}
	w.Kill()
	w.stopDriver()
	w.heal("NodeUnstageVolume")
	w.begin()
	if len(w.csi.InUse()) != 1 {
		t.Error("a staged volume after a restart: got that it is not in use, want that it is")
	}
	w.startDriver()
	w.nothingLeft()
}
