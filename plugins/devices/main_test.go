package devices_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/plugins"
	"github.com/nodelet/nodelet/plugins/devices"
	"github.com/nodelet/nodelet/plugins/devices/fake"
)

const resourceName = "nodelet.test/fake"

// world is a node whose device manager can be killed and started again.
type world struct {
	t       *testing.T
	root    string
	grace   time.Duration
	devices *devices.Devices
	stop    context.CancelFunc
	ended   chan struct{}

	mu    sync.Mutex
	woken []types.UID
	pods  []*corev1.Pod
	asked []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "dev") // short: a socket's path has at most 107 characters
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, root: dir}
	t.Cleanup(func() {
		w.kill()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	w.begin()
	return w
}

// begin starts the device manager and waits until plugins can register: those that came earlier would lose their
// sockets.
func (w *world) begin() {
	w.t.Helper()
	d, err := devices.New(devices.Config{Root: w.root, Grace: w.grace, Wake: func(pods []types.UID) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.woken = append(w.woken, pods...)
	}, Pods: func(context.Context) ([]*corev1.Pod, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.pods, nil
	}, Asked: func(version, call string, err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.asked = append(w.asked, fmt.Sprintf("%s %s failed=%t", version, call, err != nil))
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	registry := plugins.New(plugins.Config{Root: w.root, Handlers: map[string]plugins.Handler{devices.PluginType: d}})
	ctx, cancel := context.WithCancel(context.Background())
	w.devices, w.stop, w.ended = d, cancel, make(chan struct{})
	go func(ended chan struct{}) {
		defer close(ended)
		var running sync.WaitGroup
		running.Go(func() { registry.Run(ctx) })
		d.Run(ctx)
		running.Wait()
	}(w.ended)
	w.until("plugins can register", func() bool {
		_, err := os.Lstat(filepath.Join(w.root, "device-plugins", "kubelet.sock"))
		return err == nil
	})
}

// kill ends the device manager as SIGKILL would: nothing is written any more.
func (w *world) kill() {
	if w.devices != nil {
		w.stop()
		<-w.ended
		w.devices = nil
	}
}

// plugin starts a plugin with four devices, which registers.
func (w *world) plugin(change func(*fake.Config)) *fake.Plugin {
	w.t.Helper()
	c := fake.Config{Root: w.root, Resource: resourceName, Devices: []string{"d1", "d2", "d3", "d4"}}
	if change != nil {
		change(&c)
	}
	p, err := fake.Start(c)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(p.Close)
	if !c.Registry {
		w.register(p)
	}
	w.untilCapacity(c.Resource, len(c.Devices), len(c.Devices))
	w.until("what the plugin said is kept", func() bool { _, err := os.Stat(w.checkpoint()); return err == nil })
	return p
}

func (w *world) register(p *fake.Plugin) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	if err := p.Register(ctx); err != nil {
		w.t.Fatal(err)
	}
}

// untilCapacity waits until the node has so many devices, of which so many are healthy; -1: the resource is not there.
func (w *world) untilCapacity(name string, all, healthy int) {
	w.t.Helper()
	w.until(name+" has its devices", func() bool {
		capacity, allocatable := w.devices.Capacity()
		return count(capacity, name) == all && count(allocatable, name) == healthy
	})
}

func count(list corev1.ResourceList, name string) int {
	q, has := list[corev1.ResourceName(name)]
	if !has {
		return -1
	}
	return int(q.Value())
}

// until waits for something that no call of the test brings about.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	limit := time.Now().Add(60 * time.Second)
	for !ok() {
		if time.Now().After(limit) {
			w.t.Fatalf("never: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// pod makes a pod whose containers ask for devices: "init 2", "sidecar 1", "app 2"; the first word says of which kind
// it is.
func pod(uid string, ask ...string) *corev1.Pod {
	p := &corev1.Pod{}
	p.UID = types.UID(uid)
	for _, a := range ask {
		name, n, _ := strings.Cut(a, " ")
		c := corev1.Container{Name: name}
		c.Resources.Limits = corev1.ResourceList{resourceName: quantity.MustParse(n), "cpu": quantity.MustParse("1"),
			"nodelet.test/no-plugin": quantity.MustParse("1")}
		switch {
		case strings.HasPrefix(name, "sidecar"):
			always := corev1.ContainerRestartPolicyAlways
			c.RestartPolicy = &always
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		case strings.HasPrefix(name, "init"):
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		default:
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
	}
	return p
}

func noneEnded(types.UID) bool { return false }

// give gives a pod its devices as its admission does, in one go.
func (w *world) give(p *corev1.Pod, spent func(types.UID) bool) error {
	allocate, err := w.devices.Reserve(p, spent)
	if err != nil || allocate == nil {
		return err
	}
	return allocate(w.t.Context())
}

func (w *world) admit(p *corev1.Pod) {
	w.t.Helper()
	if err := w.give(p, noneEnded); err != nil {
		w.t.Errorf("pod %s is refused: %v", p.UID, err)
	}
}

func (w *world) refused(p *corev1.Pod, why string) {
	w.t.Helper()
	if err := w.give(p, noneEnded); err == nil || !strings.Contains(err.Error(), why) {
		w.t.Errorf("pod %s: got %v, want %q", p.UID, err, why)
	}
}

// has checks which devices a container of a pod is started with.
func (w *world) has(p *corev1.Pod, container, want string) {
	w.t.Helper()
	for _, c := range append(slices.Clone(p.Spec.InitContainers), p.Spec.Containers...) {
		if c.Name != container {
			continue
		}
		got, err := w.devices.Container(w.t.Context(), p, &c)
		if err != nil || got.GetEnvs()[fake.Variable] != want {
			w.t.Errorf("container %s of pod %s has %q, want %q; %v", container, p.UID, got.GetEnvs()[fake.Variable], want, err)
		}
		return
	}
	w.t.Fatalf("no container %s", container)
}

func (w *world) checkpoint() string {
	return filepath.Join(w.root, "device-plugins", "kubelet_internal_checkpoint")
}
