package csi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/test/csi/fake"
	"github.com/nodelet/nodelet/test/ownmounts"
	"github.com/nodelet/nodelet/test/plugins/plugintest"
)

func TestMain(m *testing.M) { ownmounts.Main(m) }

const driverName = "fake.csi.nodelet.test"

// world is a node with a disk, one driver and one run of csi at a time.
type world struct {
	*plugintest.Node
	root   string // the agent's
	state  string // the driver's
	boot   string
	driver *fake.Driver
	config func(*fake.Config)

	timeout time.Duration // of calls
	health  bool          // drivers are asked for it
	kinds   []csi.InTreeDriver

	log bytes.Buffer // read it only while no csi runs
	csi *csi.CSI

	mu      sync.Mutex
	infos   []csi.DriverInfo
	gone    []string
	called  []string
	refuse  error  // what Registered answers
	on      func() // what Registered and Called do first, if not nil
	changed chan struct{}
	// period is how often drivers are asked for their limits; periodChanged is closed when that changes.
	period        time.Duration
	periodChanged chan struct{}
}

// newWorld makes a node with a driver that keeps volumes as directories; config changes the driver.
func newWorld(t *testing.T, config func(*fake.Config)) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: the driver mounts")
	}
	node := plugintest.New(t)
	w := &world{
		Node:          node,
		root:          filepath.Join(node.Dir, "root"),
		state:         filepath.Join(node.Dir, "state"),
		boot:          "boot-1",
		config:        config,
		timeout:       time.Minute,
		changed:       make(chan struct{}, 100),
		periodChanged: make(chan struct{}),
	}
	if err := os.MkdirAll(filepath.Join(w.root, "pods"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.Kill()
		w.stopDriver()
		w.unmountAll()
	})
	ownmounts.DetachBelow(t, w.root)
	w.startDriver()
	w.begin()
	return w
}

func (w *world) startDriver() {
	w.T.Helper()
	c := fake.Config{
		Name:       driverName,
		NodeID:     "node",
		State:      w.state,
		Socket:     filepath.Join(w.root, "plugins", driverName, "csi.sock"),
		Registry:   filepath.Join(w.root, "plugins_registry"),
		MaxVolumes: 7,
	}
	if w.config != nil {
		w.config(&c)
	}
	var err error
	if w.driver, err = fake.Start(c); err != nil {
		w.T.Fatal(err)
	}
}

func (w *world) stopDriver() {
	if w.driver != nil {
		w.driver.Close()
		w.driver = nil
	}
}

// begin starts csi and waits until the driver is registered, if it runs.
func (w *world) begin() {
	w.T.Helper()
	c, err := csi.New(csi.Config{
		Root: w.root, NodeName: "node", BootID: w.boot, CallTimeout: w.timeout, Health: w.health, InTree: w.kinds,
		Log: slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Registered: func(_ context.Context, d csi.DriverInfo) error {
			if w.on != nil {
				w.on()
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.infos = append(w.infos, d)
			return w.refuse
		},
		Limits:  w.limits,
		Gone:    func(_ context.Context, name string) { w.mu.Lock(); w.gone = append(w.gone, name); w.mu.Unlock() },
		Wake:    w.Wake,
		Changed: func() { w.changed <- struct{}{} },
		Called: func(driver, method string, _ time.Duration, err error) {
			if w.on != nil {
				w.on()
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.called = append(w.called, fmt.Sprintf("%s of %s: %s", method, driver, status.Code(err)))
		},
	})
	if err != nil {
		w.T.Fatal(err)
	}
	w.csi = c
	w.Run(w.root, csi.PluginType, c)
	if w.driver != nil && w.refuse == nil {
		w.Until("the driver is registered", func() bool { return len(c.Drivers()) == 1 })
	}
}

// restart kills csi and starts it again.
func (w *world) restart() {
	w.T.Helper()
	w.Kill()
	w.begin()
}

// reboot restarts csi after a power failure: all mounts are gone, and what was not synced is lost.
func (w *world) reboot() {
	w.T.Helper()
	w.Kill()
	w.stopDriver()
	w.unmountAll()
	for _, path := range w.journals() {
		cut(w.T, path)
	}
	w.boot += "+"
	w.startDriver()
	w.begin()
}

func (w *world) journals() []string {
	all, err := filepath.Glob(filepath.Join(w.root, "nodelet/csi/*.json"))
	if err != nil {
		w.T.Fatal(err)
	}
	return all
}

// cut leaves half a line of what was added to a journal after the last call for a pod was announced. The first line is
// always synced.
func cut(t *testing.T, journal string) {
	t.Helper()
	lines := strings.SplitAfter(strings.TrimSuffix(read(t, journal), "\n"), "\n")
	n := len(lines)
	for n > 1 && !(strings.Contains(lines[n-1], `"intent"`) && strings.Contains(lines[n-1], `"uses"`)) {
		n--
	}
	if n < len(lines) {
		write(t, journal, strings.Join(lines[:n], "")+lines[n][:len(lines[n])/2])
	}
}

func (w *world) unmountAll() {
	for _, m := range slices.Backward(w.mounts()) {
		if err := unix.Unmount(m, unix.MNT_DETACH); err != nil {
			w.T.Error(err)
		}
	}
}

// mounts are the mount points below the agent's root.
func (w *world) mounts() []string {
	all, err := mountinfo.GetMounts(mountinfo.PrefixFilter(w.root))
	if err != nil {
		w.T.Fatal(err)
	}
	var found []string
	for _, m := range all {
		found = append(found, m.Mountpoint)
	}
	return found
}

// volume makes a volume in the driver's state.
func (w *world) volume(name string) *csi.Volume {
	w.T.Helper()
	id := "vol-" + name
	if err := os.MkdirAll(filepath.Join(w.state, "volumes", id+".img"), 0o755); err != nil {
		w.T.Fatal(err)
	}
	text := fmt.Sprintf(`{"ID":%q,"Name":%q,"Size":33554432}`, id, name)
	if err := os.WriteFile(filepath.Join(w.state, "volumes", id+".json"), []byte(text), 0o644); err != nil {
		w.T.Fatal(err)
	}
	return &csi.Volume{
		Driver:     driverName,
		Handle:     id,
		Name:       "pv-" + name,
		Attachable: true,
		AccessMode: corev1.ReadWriteOnce,
		FSType:     "ext4",
	}
}

func (w *world) publish(pod types.UID, v *csi.Volume) csi.Published {
	w.T.Helper()
	p, err := w.csi.Publish(w.T.Context(), pod, v)
	if err != nil {
		w.T.Fatal(err)
	}
	return p
}

// unpublish repeats what fails while a process that another test forks has the device of a block volume open.
func (w *world) unpublish(pod types.UID, v *csi.Volume) {
	w.T.Helper()
	w.Until("the volume is unpublished", func() bool {
		err := w.csi.Unpublish(w.T.Context(), pod, v.Name)
		if err != nil && !errors.Is(err, unix.EBUSY) {
			w.T.Fatal(err)
		}
		return err == nil
	})
}

// calls are the driver's calls of this method.
func (w *world) calls(method string) (n int) {
	for _, c := range w.driver.Calls() {
		if strings.HasPrefix(c, method+" ") {
			n++
		}
	}
	return n
}

func (w *world) fail(method, what string, times int) {
	w.T.Helper()
	if err := fake.Fail(w.state, method, what, times); err != nil {
		w.T.Fatal(err)
	}
}

func (w *world) heal(method string) {
	w.T.Helper()
	if err := fake.Heal(w.state, method); err != nil {
		w.T.Fatal(err)
	}
}

// nothingLeft: no mount, record, claim or directory of a volume is left.
func (w *world) nothingLeft() {
	w.T.Helper()
	w.Until("nothing is in use", func() bool { return len(w.csi.InUse()) == 0 && len(w.files()) == 0 })
	if m := w.mounts(); len(m) > 0 {
		w.T.Errorf("left mounted: %q", m)
	}
	if pods := w.csi.Pods(); len(pods) > 0 {
		w.T.Errorf("pods with claims left: %q", pods)
	}
}

// files are the records, and whatever lies in the volumes' directories.
func (w *world) files() (found []string) {
	for _, pattern := range []string{"nodelet/csi/*", "plugins/kubernetes.io/csi/" + driverName + "/*",
		"plugins/kubernetes.io/csi/volumeDevices/*/*", "pods/*/volumes/kubernetes.io~csi/*",
		"pods/*/volumeDevices/kubernetes.io~csi/*"} {
		m, err := filepath.Glob(filepath.Join(w.root, pattern))
		if err != nil {
			w.T.Fatal(err)
		}
		found = append(found, m...)
	}
	return found
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
