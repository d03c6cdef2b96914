package devices_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
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
	"k8s.io/client-go/util/flowcontrol"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/nodelet/nodelet/plugins/devices"
	"github.com/nodelet/nodelet/test/placementtest"
	"github.com/nodelet/nodelet/test/plugins/devices/fake"
	"github.com/nodelet/nodelet/test/plugins/plugintest"
	"github.com/nodelet/nodelet/test/waittest"
)

const resourceName = "nodelet.test/fake"

// world is a node whose device manager can be killed and started again.
type world struct {
	*plugintest.Node
	grace time.Duration
	// timeout is how long pods wait for plugins.
	timeout time.Duration
	limiter flowcontrol.RateLimiter
	devices *devices.Devices

	// exclusive is what containers and pods have exclusively; nil: nothing.
	exclusive devices.Exclusive
	// claims has what containers have by ResourceClaims, by the name of the container.
	claims map[string][]*podresources.DynamicResource

	mu sync.Mutex
	// gone are pods that no source has any more.
	pods, gone []*corev1.Pod
	asked      []string
	// changed are the pods whose health has changed, in their order.
	changed []types.UID
	// capacity and allocatable are what the node shows: what they were at the start and when they changed.
	capacity, allocatable corev1.ResourceList
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Node: plugintest.New(t), timeout: time.Hour}
	w.begin()
	return w
}

// begin starts the device manager and waits until plugins can register: those that came earlier would lose their
// sockets.
func (w *world) begin() {
	w.T.Helper()
	d, err := devices.New(devices.Config{
		Root:            w.Dir,
		Grace:           w.grace,
		RegisterTimeout: w.timeout,
		Limiter:         w.limiter,
		Wake:            w.Wake,
		HealthChanged:   w.healthChanged,
		Claims: func(_ *corev1.Pod, c *corev1.Container) []*podresources.DynamicResource {
			return w.claims[c.Name]
		},
		Exclusive:  cmp.Or[devices.Exclusive](w.exclusive, placementtest.Off()),
		Changed:    w.show,
		Registered: func(string) {},
		Allocated:  func(string, time.Duration) {},
		Log:        slog.New(slog.DiscardHandler),
		Pods: func(context.Context) (known, gone []*corev1.Pod, err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return slices.Clone(w.pods), slices.Clone(w.gone), nil
		},
		Asked: func(version, call string, err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.asked = append(w.asked, fmt.Sprintf("%s %s failed=%t", version, call, err != nil))
		},
	})
	if err != nil {
		w.T.Fatal(err)
	}
	w.devices = d
	w.show()
	w.Run(w.Dir, devices.PluginType, d)
	w.Until("plugins can register", func() bool {
		_, err := os.Lstat(filepath.Join(w.Dir, "device-plugins", "kubelet.sock"))
		return err == nil
	})
}

// plugin starts a plugin with four devices, which registers.
func (w *world) plugin(change func(*fake.Config)) *fake.Plugin {
	w.T.Helper()
	c := fake.Config{Root: w.Dir, Resource: resourceName, Devices: []string{"d1", "d2", "d3", "d4"}}
	if change != nil {
		change(&c)
	}
	p, err := fake.Start(c)
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(p.Close)
	if !c.Registry {
		w.register(p)
	}
	w.untilCapacity(c.Resource, len(c.Devices), len(c.Devices))
	w.Until("what the plugin said is kept", func() bool { _, err := os.Stat(w.checkpoint()); return err == nil })
	return p
}

func (w *world) register(p *fake.Plugin) {
	w.T.Helper()
	if err := p.Register(waittest.Context(w.T)); err != nil {
		w.T.Fatal(err)
	}
}

// untilCapacity waits until the node shows so many devices, of which so many are healthy; -1: the resource is not
// there.
func (w *world) untilCapacity(name string, all, healthy int) {
	w.T.Helper()
	w.Until(name+" has its devices", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return count(w.capacity, name) == all && count(w.allocatable, name) == healthy
	})
}

func (w *world) show() {
	capacity, allocatable := w.devices.Capacity()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.capacity = capacity
	w.allocatable = allocatable
}

func count(list corev1.ResourceList, name string) int {
	q, has := list[corev1.ResourceName(name)]
	if !has {
		return -1
	}
	return int(q.Value())
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

// give gives a pod its devices as its admission does, in one go. It checks that Rejection says before what Reserve
// does.
func (w *world) give(p *corev1.Pod) error {
	w.T.Helper()
	refusal := w.devices.Rejection(p)
	allocate, err := w.devices.Reserve(p, nil)
	if fmt.Sprint(refusal) != fmt.Sprint(err) {
		w.T.Errorf("refusal of pod %s: got %v, want %v", p.UID, refusal, err)
	}
	if err != nil || allocate == nil {
		return err
	}
	return allocate(w.T.Context())
}

func (w *world) admit(p *corev1.Pod) {
	w.T.Helper()
	if err := w.give(p); err != nil {
		w.T.Errorf("pod %s: got refused with %v, want it admitted", p.UID, err)
	}
}

func (w *world) refused(p *corev1.Pod, why string) {
	w.T.Helper()
	if err := w.give(p); err == nil || !strings.Contains(err.Error(), why) {
		w.T.Errorf("pod %s: got %v, want %q", p.UID, err, why)
	}
}

// has checks which devices a container of a pod is started with.
func (w *world) has(p *corev1.Pod, container, want string) {
	w.T.Helper()
	for _, c := range append(slices.Clone(p.Spec.InitContainers), p.Spec.Containers...) {
		if c.Name != container {
			continue
		}
		got, err := w.devices.Container(w.T.Context(), p, &c)
		if err != nil || got.GetEnvs()[fake.Variable] != want {
			w.T.Errorf("container %s of pod %s has %q, want %q; %v", container, p.UID, got.GetEnvs()[fake.Variable], want, err)
		}
		return
	}
	w.T.Fatalf("no container %s", container)
}

func (w *world) checkpoint() string {
	return filepath.Join(w.Dir, "device-plugins", "kubelet_internal_checkpoint")
}

func (w *world) healthChanged(pods []types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed = append(w.changed, pods...)
}

// takeChanged returns the pods whose health has changed since the last call.
func (w *world) takeChanged() []types.UID {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed := w.changed
	w.changed = nil
	return changed
}
