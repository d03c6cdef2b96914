package dra_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/plugins/dra"
	"github.com/nodelet/nodelet/plugins/dra/checkpoint"
	"github.com/nodelet/nodelet/test/plugins/dra/fake"
	"github.com/nodelet/nodelet/test/plugins/plugintest"
)

const driverName = "nodelet.test"

// world is a node whose DRA manager can be killed and started again, and the claims that the API server has.
type world struct {
	*plugintest.Node
	dra *dra.DRA

	mu     sync.Mutex
	claims map[string]*resourcev1.ResourceClaim
	// slices are the drivers that have ResourceSlices; broken: the API server does not answer.
	slices []string
	broken bool
	// changed are the pods whose health has changed, in their order.
	changed []types.UID
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Node: plugintest.New(t), claims: map[string]*resourcev1.ResourceClaim{}}
	w.begin()
	return w
}

// begin starts the DRA manager.
func (w *world) begin() {
	w.T.Helper()
	d, err := dra.New(dra.Config{
		Root:           w.Dir,
		Grace:          time.Millisecond,
		API:            w,
		Health:         true,
		HealthChanged:  w.healthChanged,
		HealthMessages: true,
		Wake:           w.Wake,
		Log:            slog.New(slog.DiscardHandler),
	})
	if err != nil {
		w.T.Fatal(err)
	}
	w.dra = d
	w.Run(w.Dir, dra.PluginType, d)
}

func (w *world) restart() {
	w.Kill()
	w.begin()
}

// Claim reads a ResourceClaim.
func (w *world) Claim(_ context.Context, _, name string) (*resourcev1.ResourceClaim, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.claims[name]; c != nil {
		return c, nil
	}
	return nil, errors.New("no such claim")
}

// put makes a claim, allocated from drivers and reserved for pods.
func (w *world) put(name string, drivers []string, pods ...*corev1.Pod) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
		UID: types.UID("uid-" + name)}}
	c.Status.Allocation = &resourcev1.AllocationResult{}
	for _, d := range drivers {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourcev1.DeviceRequestAllocationResult{Driver: d, Pool: "pool", Device: "device-" + name})
	}
	for _, p := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor,
			resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p.Name, UID: p.UID})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.claims[name] = c
	return c
}

// Drivers are those that have ResourceSlices.
func (w *world) Drivers(context.Context) ([]string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken {
		w.broken = false
		return nil, errors.New("no API server")
	}
	return slices.Clone(w.slices), nil
}

// Delete deletes the ResourceSlices of a driver.
func (w *world) Delete(_ context.Context, driver string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken {
		w.broken = false
		return errors.New("no API server")
	}
	w.slices = slices.DeleteFunc(w.slices, func(name string) bool { return name == driver })
	return nil
}

// sliced reports whether a driver has ResourceSlices.
func (w *world) sliced(driver string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.slices, driver)
}

// driver starts a driver, and waits until it has registered and is connected.
func (w *world) driver(change func(*fake.Config)) *fake.Driver {
	w.T.Helper()
	c := fake.Config{Root: w.Dir, Name: driverName}
	if change != nil {
		change(&c)
	}
	d, err := fake.Start(c)
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(d.Close)
	w.Until("the driver has registered", func() bool {
		got := d.Registrations()
		return len(got) > 0 && got[len(got)-1].PluginRegistered
	})
	return d
}

// prepare prepares the claims of a pod, for which the driver may still be connecting.
func (w *world) prepare(p *corev1.Pod) {
	w.T.Helper()
	var err error
	w.Until("the claims are prepared", func() bool {
		err = w.dra.Prepare(w.T.Context(), p)
		return err == nil || !strings.Contains(err.Error(), "is not registered") &&
			!strings.Contains(err.Error(), "Unavailable")
	})
	if err != nil {
		w.T.Fatal(err)
	}
}

// unprepare gives the claims of a pod back, for which the driver may still be connecting.
func (w *world) unprepare(p *corev1.Pod) {
	w.T.Helper()
	var err error
	w.Until("the claims are unprepared", func() bool {
		err = w.dra.Unprepare(w.T.Context(), p.UID)
		return err == nil || !strings.Contains(err.Error(), "is not registered") &&
			!strings.Contains(err.Error(), "Unavailable")
	})
	if err != nil {
		w.T.Fatal(err)
	}
}

// has checks which devices the first container of a pod has.
func (w *world) has(p *corev1.Pod, want ...string) {
	w.T.Helper()
	got, err := w.dra.Devices(p, &p.Spec.Containers[0])
	if err != nil || !slices.Equal(got, want) {
		w.T.Errorf("%s: got %q, want %q; %v", p.Name, got, want, err)
	}
}

// kept are the claims in the file, as "claim: pod,pod".
func (w *world) kept() (all []string) {
	w.T.Helper()
	text, err := os.ReadFile(w.file())
	if err != nil {
		w.T.Fatal(err)
	}
	claims, err := checkpoint.Unmarshal(text)
	if err != nil {
		w.T.Fatal(err)
	}
	for _, c := range claims {
		var pods []string
		for uid := range c.PodUIDs {
			pods = append(pods, uid)
		}
		slices.Sort(pods)
		all = append(all, c.ClaimName+": "+strings.Join(pods, ","))
	}
	return all
}

func (w *world) file() string { return filepath.Join(w.Dir, "dra_manager_state") }

// asked checks what a driver was asked for.
func (w *world) asked(d *fake.Driver, want ...string) {
	w.T.Helper()
	if got := d.Calls(); !slices.Equal(got, want) {
		w.T.Errorf("the driver was asked %q, want %q", got, want)
	}
}

// pod is a pod that uses claims, all of them in its one container.
func pod(name string, claims ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	c := corev1.Container{Name: "app"}
	for _, claim := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: claim, ResourceClaimName: &claim})
		c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: claim})
	}
	p.Spec.Containers = []corev1.Container{c}
	return p
}

var one = []string{driverName}
