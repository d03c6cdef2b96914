package devices_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/nodelet/nodelet/test/plugins/devices/fake"
	"github.com/nodelet/nodelet/test/waittest"
)

// TestDevicesGoRound checks that a container gets its devices with all that the plugin says of them, each device goes
// to one container, and who comes too late is refused in the kubelet's words.
func TestDevicesGoRound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.plugin(func(c *fake.Config) { c.Mount = "/opt/fake" })
	one, two := pod("one", "app 2"), pod("two", "app 1", "other 1")
	three := pod("three", "app 1")
	w.admit(one)
	w.admit(two)
	w.refused(three, "requested number of devices unavailable for nodelet.test/fake. Requested: 1, Available: 0")
	w.has(one, "app", "d1,d2")
	w.has(two, "app", "d3")
	w.has(two, "other", "d4")
	got, err := w.devices.Container(t.Context(), one, &one.Spec.Containers[0])
	if err != nil || len(got.Devices) != 2 || got.Devices[0].ContainerPath != "/dev/d1" || len(got.Mounts) != 1 ||
		!got.Mounts[0].ReadOnly {
		t.Errorf("got %v, %v", got, err)
	}
	w.admit(one) // again, as the agent may after a restart
	if want := []string{"Allocate d1,d2", "Allocate d3", "Allocate d4"}; !slices.Equal(p.Calls(), want) {
		t.Errorf("the plugin was asked %q, want %q", p.Calls(), want)
	}

	w.devices.Release(one.UID)
	w.admit(three)
	w.has(three, "app", "d1")
	w.refused(pod("four", "app 2"), "Requested: 2, Available: 1")
	w.devices.ReleaseEnded(func(uid types.UID) bool { return uid == two.UID })
	w.admit(pod("four", "app 3"))
}

// TestEndedPodLeavesCheckpoint checks that the devices of an ended pod, which another pod could have had at once, have
// left the checkpoint when the pod is gone.
func TestEndedPodLeavesCheckpoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plugin(nil)
	one := pod("one", "app 2")
	w.admit(one)
	w.devices.ReleaseEnded(func(uid types.UID) bool { return uid == one.UID })
	w.devices.Release(one.UID)
	if text, err := os.ReadFile(w.checkpoint()); err != nil || strings.Contains(string(text), `"one"`) {
		t.Errorf("checkpoint: got %v and %s, want it without the pod", err, text)
	}
}

// TestNotAsked checks that a pod that asks for nothing, or for what no plugin offers, has nothing to do with devices.
func TestNotAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := pod("one", "app 2")
	w.admit(p)
	if got, err := w.devices.Container(t.Context(), p, &p.Spec.Containers[0]); got != nil || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := os.Stat(w.checkpoint()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("checkpoint: got %v, want none", err)
	}
}

// TestInitContainers checks that the devices of an init container serve those after it, those of a sidecar stay with
// it.
func TestInitContainers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plugin(nil)
	p := pod("one", "init-a 2", "sidecar 1", "init-b 2", "app 3")
	w.admit(p)
	w.has(p, "init-a", "d1,d2")
	w.has(p, "sidecar", "d1")
	w.has(p, "init-b", "d2,d3")
	w.has(p, "app", "d2,d3,d4")
	w.refused(pod("two", "app 1"), "Available: 0")
}

// TestAllOrNothing checks that a pod that cannot have all that it asks for has nothing.
func TestAllOrNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.plugin(nil)
	w.refused(pod("one", "app 3", "other 2"), "Requested: 2, Available: 1")
	p.Fail(errors.New("the device is on fire"))
	w.refused(pod("two", "app 1"), "the device is on fire")
	p.Fail(nil)
	w.admit(pod("three", "app 4"))
}

// TestPreferred checks that the plugin chooses if it wants to.
func TestPreferred(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plugin(func(c *fake.Config) { c.Prefer = true })
	p := pod("one", "app 2")
	w.admit(p)
	w.has(p, "app", "d3,d4")
}

// TestHealth checks that only healthy devices are allocated; the capacity of the node follows.
func TestHealth(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.plugin(nil)
	p.SetHealth("d1", false)
	w.untilCapacity(resourceName, 4, 3)
	w.refused(pod("one", "app 4"), "Requested: 4, Available: 3")
	two := pod("two", "app 1")
	w.admit(two)
	w.has(two, "app", "d2")
	p.SetHealth("d1", true)
	w.untilCapacity(resourceName, 4, 4)
}

// TestRepeatedDevices checks that a device counts once if its plugin lists it twice, and that it is unhealthy if the
// plugin says so once.
func TestRepeatedDevices(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p, err := fake.Start(fake.Config{
		Root:     w.Dir,
		Resource: resourceName,
		Devices:  []string{"d1", "d2", "d1", "d3"},
		Again:    []string{"d3"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	w.register(p)
	w.untilCapacity(resourceName, 3, 2)
	one := pod("one", "app 2")
	w.admit(one)
	w.has(one, "app", "d1,d2")
}

// TestPluginGone checks that the devices of a plugin that has ended are not allocated; pods keep those they have,
// also when containers restart.
func TestPluginGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.plugin(nil)
	one := pod("one", "app 2")
	w.admit(one)
	if got := w.devices.Connected(); !slices.Equal(got, []string{resourceName}) {
		t.Errorf("got the plugins %q, want that of %s", got, resourceName)
	}
	p.Close()
	w.untilCapacity(resourceName, 4, 0)
	if got := w.devices.Connected(); len(got) > 0 {
		t.Errorf("got the plugins %q after the end of the only one, want none", got)
	}
	w.refused(pod("two", "app 1"), "no healthy devices present; cannot allocate unhealthy devices nodelet.test/fake")
	w.has(one, "app", "d1,d2")
	again := w.plugin(nil)
	w.refused(pod("three", "app 3"), "Requested: 3, Available: 2")
	if len(again.Calls()) > 0 {
		t.Errorf("got the calls %q for what the plugin has given, want none", again.Calls())
	}
	// Another plugin takes its place while it runs.
	w.plugin(func(c *fake.Config) { c.Devices = []string{"d1", "d5"} })
	four := pod("four", "app 1")
	w.admit(four)
	w.has(four, "app", "d5")
}

// TestPluginWithoutDevices checks that the node shows the resource of a plugin that has no devices, and that the
// checkpoint has it.
func TestPluginWithoutDevices(t *testing.T) {
	t.Parallel()
	newWorld(t).plugin(func(c *fake.Config) { c.Devices = nil })
}

// TestTwoPlugins checks that of two plugins of a resource the newer one is asked, that the older one goes on if that
// ends, and that the end of the older one changes nothing.
func TestTwoPlugins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.plugin(nil)
	newer := func() *fake.Plugin {
		return w.plugin(func(c *fake.Config) { c.Socket, c.Devices = "newer.sock", []string{"d1", "d5"} })
	}
	next := newer()
	one := pod("one", "app 2")
	w.admit(one)
	w.has(one, "app", "d1,d5")
	next.Close()
	w.untilCapacity(resourceName, 4, 4)
	two := pod("two", "app 3")
	w.admit(two)
	w.has(two, "app", "d2,d3,d4")
	if len(old.Calls()) != 1 || len(next.Calls()) != 1 {
		t.Errorf("got the calls %q of the older plugin and %q of the newer one, want one each", old.Calls(), next.Calls())
	}
	last := newer()
	old.Close()
	last.SetHealth("d5", false)
	w.untilCapacity(resourceName, 2, 1)
	last.Close()
	w.untilCapacity(resourceName, 2, 0)
}

// TestWithdrawn checks that a plugin that does not come back takes its devices with it; the node says that there are
// none.
func TestWithdrawn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Kill()
	w.grace = time.Millisecond
	w.begin()
	p := w.plugin(nil)
	one := pod("one", "app 2")
	w.admit(one)
	p.Close()
	w.untilCapacity(resourceName, 0, 0)
	w.refused(pod("two", "app 1"), "cannot allocate unregistered device nodelet.test/fake")
	w.devices.Release(one.UID)
	w.admit(pod("three", "app 1")) // as any extended resource that no plugin offers
	w.plugin(nil)
	w.untilCapacity(resourceName, 4, 4)
}

// TestPreStart checks that a plugin that wants to prepare its devices does so before each start.
func TestPreStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.plugin(func(c *fake.Config) { c.PreStart = true })
	one := pod("one", "app 2")
	w.admit(one)
	w.has(one, "app", "d1,d2")
	w.has(one, "app", "d1,d2")
	want := []string{"Allocate d1,d2", "PreStartContainer d1,d2", "PreStartContainer d1,d2"}
	if !slices.Equal(p.Calls(), want) {
		t.Errorf("the plugin was asked %q, want %q", p.Calls(), want)
	}
	p.Fail(errors.New("the device is on fire"))
	if _, err := w.devices.Container(t.Context(), one, &one.Spec.Containers[0]); err == nil ||
		!strings.Contains(err.Error(), "on fire") {
		t.Errorf("got %v", err)
	}
}

// TestAgentKilled checks that allocations survive a kill of the agent without a call to the plugin; the node has
// devices again when the plugin has registered, and the pods that wait for it are woken.
func TestAgentKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.plugin(nil)
	one := pod("one", "app 2")
	w.admit(one)
	w.Kill()
	before, err := os.ReadFile(w.checkpoint())
	if err != nil {
		t.Fatal(err)
	}
	w.begin()
	w.untilCapacity(resourceName, 0, 0)
	resumed := w.resume(one)
	w.refused(pod("two", "app 1"), "no healthy devices present")
	if _, err := w.devices.Container(t.Context(), one, &one.Spec.Containers[0]); err == nil ||
		!strings.Contains(err.Error(), "has not registered since") {
		t.Errorf("got %v", err)
	}
	p.Close()
	p = w.plugin(nil)
	w.Until("the pod is woken", func() bool { return slices.Contains(w.Woken(), one.UID) })
	if err := <-resumed; err != nil {
		t.Errorf("pod that had its devices: got %v, want it admitted", err)
	}
	w.has(one, "app", "d1,d2")
	w.refused(pod("two", "app 3"), "Requested: 3, Available: 2")
	if len(p.Calls()) > 0 {
		t.Errorf("got the calls %q, want none", p.Calls())
	}
	w.Until("the checkpoint is what it was", func() bool {
		after, err := os.ReadFile(w.checkpoint())
		return err == nil && string(after) == string(before)
	})
}

// TestKilledAtEachStep checks that wherever the agent is killed while it admits a pod, after the restart the pod gets
// its devices, and no other pod gets them.
func TestKilledAtEachStep(t *testing.T) {
	t.Parallel()
	for step, cut := range map[string]func(w *world, p *fake.Plugin, one *corev1.Pod){
		"before the plugin is asked": func(*world, *fake.Plugin, *corev1.Pod) {},
		"while the plugin is asked": func(w *world, p *fake.Plugin, one *corev1.Pod) {
			p.Fail(errors.New("cut off"))
			w.refused(one, "cut off")
		},
		"before the checkpoint is in place": func(w *world, _ *fake.Plugin, one *corev1.Pod) {
			before, err := os.ReadFile(w.checkpoint())
			w.admit(one)
			w.Kill()
			tmp := filepath.Join(w.Dir, "device-plugins", ".kubelet_internal_checkpoint.new")
			if err := errors.Join(err, os.WriteFile(w.checkpoint(), before, 0o600),
				os.WriteFile(tmp, []byte("half"), 0o600)); err != nil {
				w.T.Fatal(err)
			}
		},
		"when all is done": func(w *world, _ *fake.Plugin, one *corev1.Pod) { w.admit(one) },
	} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			p := w.plugin(nil)
			one := pod("one", "app 3")
			cut(w, p, one)
			w.Kill()
			p.Close()
			w.begin()
			w.plugin(nil)
			w.admit(one)
			w.has(one, "app", "d1,d2,d3")
			w.refused(pod("two", "app 2"), "Requested: 2, Available: 1")
		})
	}
}

// TestLateDevices checks that a pod that was admitted without devices, as after the loss of the checkpoint, gets them
// when its container is made.
func TestLateDevices(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := pod("one", "app 2")
	w.admit(one)
	w.plugin(nil)
	w.has(one, "app", "d1,d2")
	two := pod("two", "app 3")
	if _, err := w.devices.Container(t.Context(), two, &two.Spec.Containers[0]); err == nil ||
		!strings.Contains(err.Error(), "Available: 2") {
		t.Errorf("got %v", err)
	}
}

// TestCheckpointFails checks that when the checkpoint cannot be written, no device is allocated.
func TestCheckpointFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plugin(nil)
	tmp := filepath.Join(w.Dir, "device-plugins", ".kubelet_internal_checkpoint.new")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	w.refused(pod("one", "app 1"), "failed to write checkpoint file")
	if err := os.Remove(tmp); err != nil {
		t.Fatal(err)
	}
	w.admit(pod("two", "app 4"))
}

// TestDamagedAnswer checks that a damaged answer of a plugin costs that it is asked once more, for the same devices.
func TestDamagedAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.plugin(nil)
	one := pod("one", "app 2")
	w.admit(one)
	w.Kill()
	p.Close()
	text, err := os.ReadFile(w.checkpoint())
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Index(string(text), `"AllocResp":"`) + len(`"AllocResp":"`)
	if err := os.WriteFile(w.checkpoint(), slices.Concat(text[:at], []byte("////"), text[at+4:]), 0o600); err != nil {
		t.Fatal(err)
	}
	w.begin()
	p = w.plugin(nil)
	w.refused(pod("two", "app 3"), "Requested: 3, Available: 2")
	w.has(one, "app", "d1,d2")
	if want := []string{"Allocate d1,d2"}; !slices.Equal(p.Calls(), want) {
		t.Errorf("the plugin was asked %q, want %q", p.Calls(), want)
	}
}

// TestRegistry checks that a plugin may register by a socket of its own; when the socket is removed, its devices
// become unhealthy.
func TestRegistry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.plugin(func(c *fake.Config) { c.Registry = true })
	w.Until("the plugin is notified",
		func() bool { got := p.Registrations(); return len(got) > 0 && got[0].PluginRegistered })
	one := pod("one", "app 2")
	w.admit(one)
	w.has(one, "app", "d1,d2")
	if err := os.Remove(filepath.Join(w.Dir, "plugins_registry", "nodelet.test-fake.sock")); err != nil {
		t.Fatal(err)
	}
	w.untilCapacity(resourceName, 4, 0)
}

// TestRefusedPlugins checks that plugins of an unsupported version, or for a name that is no extended resource, are
// refused with the reason.
func TestRefusedPlugins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct{ version, resource, endpoint, why string }{
		{"v1alpha1", resourceName, "x.sock", "is not supported by kubelet"},
		{api.Version, "cpu", "x.sock", "is invalid"},
		{api.Version, "kubernetes.io/fake", "x.sock", "is invalid"},
		{api.Version, "requests.nodelet.test/fake", "x.sock", "is invalid"},
		{api.Version, "nodelet.test/fa ke", "x.sock", "is invalid"},
	} {
		err := fake.Register(waittest.Context(t), w.Dir, &api.RegisterRequest{
			Version:      c.version,
			ResourceName: c.resource,
			Endpoint:     c.endpoint,
		})
		if err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%+v: got %v", c, err)
		}
	}
	if capacity, _ := w.devices.Capacity(); len(capacity) > 0 {
		t.Errorf("capacity: got %v, want none", capacity)
	}
}

// TestOldSockets checks that the agent removes existing sockets when it starts, so that their plugins register again;
// other files stay.
func TestOldSockets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plugin(nil)
	dir := filepath.Join(w.Dir, "device-plugins")
	if err := os.WriteFile(filepath.Join(dir, "DEPRECATION"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.Kill()
	w.begin()
	w.Until("the plugin's socket goes", func() bool {
		_, err := os.Lstat(filepath.Join(dir, "nodelet.test-fake.sock"))
		return errors.Is(err, os.ErrNotExist)
	})
	if _, err := os.Stat(filepath.Join(dir, "DEPRECATION")); err != nil {
		t.Error(err)
	}
}
