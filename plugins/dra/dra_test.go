package dra_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"github.com/nodelet/nodelet/plugins/dra"
	"github.com/nodelet/nodelet/test/plugins/dra/fake"
)

// TestSharedClaim checks that a claim that pods share is prepared for the first of them and unprepared after the
// last.
func TestSharedClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.driver(nil)
	a, b := pod("a", "gpu", "own"), pod("b", "gpu")
	w.put("gpu", one, a, b)
	w.put("own", one, a)
	w.prepare(a)
	w.has(a, "nodelet.test/fake=uid-gpu", "nodelet.test/fake=uid-own")
	w.prepare(b)
	w.has(b, "nodelet.test/fake=uid-gpu")
	if total, byDriver := w.dra.InUse(); total != 2 || byDriver[driverName] != 2 {
		t.Errorf("got %d claims in use, by driver %v, want 2", total, byDriver)
	}
	if got := w.kept(); !slices.Equal(got, []string{"gpu: a,b", "own: a"}) {
		t.Errorf("claims kept: got %q, want gpu for a and b, own for a", got)
	}
	w.unprepare(a)
	if w.dra.Holds(a.UID) || !w.dra.Holds(b.UID) {
		t.Error("another pod: got a claim, want none")
	}
	w.unprepare(b)
	w.unprepare(b) // again, as after a lost answer
	w.asked(d, "prepare gpu,own", "unprepare own", "unprepare gpu")
	if total, byDriver := w.dra.InUse(); total != 0 || len(byDriver) != 0 {
		t.Errorf("got %d claims in use, by driver %v, want none", total, byDriver)
	}
	if got := w.kept(); len(got) > 0 {
		t.Errorf("claims kept: got %q, want none", got)
	}
	if got, err := w.dra.Devices(b, &b.Spec.Containers[0]); err == nil {
		t.Errorf("devices of a claim that is not prepared: got %q, want an error", got)
	}
}

// TestRefused checks that what a pod may not have, or has no driver, is refused, and nothing is noted of it.
func TestRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := pod("a", "gpu")
	template := "template"
	for name, c := range map[string]struct {
		change func(p *corev1.Pod, c *resourcev1.ResourceClaim)
		want   string
	}{
		"no driver": {func(*corev1.Pod, *resourcev1.ResourceClaim) {}, "DRA driver nodelet.test is not registered"},
		"not reserved": {func(_ *corev1.Pod, c *resourcev1.ResourceClaim) { c.Status.ReservedFor = nil },
			"is not allowed to use ResourceClaim gpu"},
		"not allocated": {func(_ *corev1.Pod, c *resourcev1.ResourceClaim) { c.Status.Allocation = nil },
			"ResourceClaim gpu: not allocated"},
		"no such claim": {func(p *corev1.Pod, _ *resourcev1.ResourceClaim) {
			p.Spec.ResourceClaims[0].ResourceClaimName = &template
		},
			"fetch ResourceClaim template: no such claim"},
		"not made yet": {func(p *corev1.Pod, _ *resourcev1.ResourceClaim) {
			p.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "gpu", ResourceClaimTemplateName: &template}
		}, "ResourceClaim not created yet"},
		"another's": {func(p *corev1.Pod, c *resourcev1.ResourceClaim) {
			p.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "gpu", ResourceClaimTemplateName: &template}
			p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &c.Name}}
			c.OwnerReferences = []metav1.OwnerReference{{UID: "other", Controller: new(true)}}
		}, "was not created for Pod ns/a (Pod is not owner)"},
	} {
		next, claim := p.DeepCopy(), w.put("gpu", one, p)
		c.change(next, claim)
		if err := w.dra.Prepare(t.Context(), next); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	if w.dra.Holds(p.UID) {
		t.Error("got a claim in the checkpoint, want none")
	}
	if _, err := os.Stat(w.file()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("file: got %v, want none", err)
	}
	w.driver(nil)
	w.Until("the pod is woken when its driver has come", func() bool { return slices.Contains(w.Woken(), p.UID) })
}

// TestNothingToPrepare checks that a template that needs no claim, and a claim without devices of any driver, cause
// no call of a driver.
func TestNothingToPrepare(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p, template := pod("a", "empty", "none"), "template"
	p.Spec.ResourceClaims[1] = corev1.PodResourceClaim{Name: "none", ResourceClaimTemplateName: &template}
	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "none"}}
	w.put("empty", nil, p)
	w.prepare(p)
	w.has(p)
	w.unprepare(p)
}

// TestOldClaim checks that a claim of an earlier object of the same name must be given back first.
func TestOldClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.driver(nil)
	a, b := pod("a", "gpu"), pod("b", "gpu")
	w.put("gpu", one, a)
	w.prepare(a)
	w.put("gpu", one, b).UID = "another"
	err := w.dra.Prepare(t.Context(), b)
	if err == nil || !strings.Contains(err.Error(), "different UID uid-gpu still exists") || w.dra.Holds(b.UID) {
		t.Errorf("got %v", err)
	}
	w.unprepare(a)
	w.prepare(b)
	w.has(b, "nodelet.test/fake=another")
}

// TestClaimAllocatedAgain checks that the devices of an earlier allocation of the same claim must be given back first,
// as after the object of a pod was deleted while the pod still ran. An earlier process may have prepared them.
func TestClaimAllocatedAgain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		restart func(*world)
		asked   []string
	}{
		"same process":    {func(*world) {}, []string{"prepare gpu", "unprepare gpu", "prepare gpu"}},
		"another process": {(*world).restart, []string{"prepare gpu", "prepare gpu", "unprepare gpu", "prepare gpu"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			d := w.driver(nil)
			a, b := pod("a", "gpu"), pod("b", "gpu")
			same := pod("same", "gpu")
			w.put("gpu", one, a, same)
			w.prepare(a)
			test.restart(w)
			w.prepare(same)
			test.restart(w)
			w.put("gpu", one, b).Status.Allocation.Devices.Results[0].Device = "another"
			var err error
			w.Until("the driver has registered again", func() bool {
				err = w.dra.Prepare(t.Context(), b)
				return err == nil || !strings.Contains(err.Error(), "is not registered")
			})
			if err == nil || !strings.Contains(err.Error(), "has been allocated again") || w.dra.Holds(b.UID) {
				t.Errorf("got %v, want an error and nothing recorded", err)
			}
			w.unprepare(a)
			w.unprepare(same)
			w.prepare(b)
			w.asked(d, test.asked...)
		})
	}
}

// TestCrashes checks that wherever the agent dies, what a driver may have prepared is known, and given back.
func TestCrashes(t *testing.T) {
	t.Parallel()
	for name, die := range map[string]func(w *world, d *fake.Driver, p *corev1.Pod){
		"the driver fails": func(w *world, d *fake.Driver, p *corev1.Pod) {
			d.Fail("it burns")
			if err := w.dra.Prepare(w.T.Context(), p); err == nil || !strings.Contains(err.Error(), "it burns") {
				w.T.Errorf("got %v", err)
			}
			d.Fail("")
		},
		"while the driver prepares": func(w *world, d *fake.Driver, p *corev1.Pod) {
			waiting, release := d.Hold()
			over := make(chan error, 1)
			go func() { over <- w.dra.Prepare(w.T.Context(), p) }()
			<-waiting
			w.Kill()
			if err := <-over; err == nil {
				w.T.Error("a call that was given up has succeeded")
			}
			release()
		},
		"prepared": func(w *world, _ *fake.Driver, p *corev1.Pod) { w.prepare(p) },
		"the driver fails to unprepare": func(w *world, d *fake.Driver, p *corev1.Pod) {
			w.prepare(p)
			d.Fail("it burns")
			if err := w.dra.Unprepare(w.T.Context(), p.UID); err == nil || !strings.Contains(err.Error(), "it burns") {
				w.T.Errorf("got %v", err)
			}
			d.Fail("")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			d := w.driver(nil)
			p := pod("a", "gpu")
			w.put("gpu", one, p)
			die(w, d, p)
			w.restart()
			if got := w.dra.Pods(); !slices.Equal(got, []types.UID{"a"}) {
				t.Errorf("pods with claims: got %q, want a", got)
			}
			w.unprepare(p)
			if calls := d.Calls(); calls[len(calls)-1] != "unprepare gpu" || len(w.kept()) > 0 {
				t.Errorf("got the calls %q and %q recorded, want the claim unprepared", calls, w.kept())
			}
		})
	}
}

// TestNextLife checks that after a restart of the agent a pod has its devices without its driver; for a new sandbox
// they are prepared once more.
func TestNextLife(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.driver(nil)
	p := pod("a", "gpu")
	w.put("gpu", one, p)
	w.prepare(p)
	w.restart()
	w.has(p, "nodelet.test/fake=uid-gpu")
	w.prepare(p)
	w.prepare(p)
	w.asked(d, "prepare gpu", "prepare gpu")
	w.has(p, "nodelet.test/fake=uid-gpu")
}

// TestHangingDriver checks that a driver that hangs holds up its own pods, and no others.
func TestHangingDriver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slow := w.driver(nil)
	w.driver(func(c *fake.Config) { c.Name = "other.test" })
	a, b := pod("a", "gpu"), pod("b", "nic")
	both := pod("c", "gpu")
	w.put("gpu", one, a, both)
	w.put("nic", []string{"other.test"}, b)
	early := pod("early", "early")
	w.put("early", one, early)
	w.prepare(early) // the driver is connected
	waiting, release := slow.Hold()
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- w.dra.Prepare(t.Context(), a) }()
	<-waiting
	go func() { second <- w.dra.Prepare(t.Context(), both) }()
	w.prepare(b)
	w.unprepare(b)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.dra.Unprepare(ctx, a.UID); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled while the claim is being prepared: got error %v, want %v", err, context.Canceled)
	}
	release()
	for _, over := range []chan error{first, second} {
		if err := <-over; err != nil {
			t.Error(err)
		}
	}
	w.asked(slow, "prepare early", "prepare gpu")
}

// TestPrepareIsGivenUp ends a pod while a driver prepares its ResourceClaim. The step ends at once. But the driver goes
// on: until it answers, it gets no other call for the ResourceClaim, and the pod keeps it. The next driver is not
// asked to prepare it.
func TestPrepareIsGivenUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slow := w.driver(nil)
	other := w.driver(func(c *fake.Config) { c.Name = "other.test" })
	a, b := pod("a", "gpu"), pod("b", "nic")
	shared := pod("c", "gpu")
	w.put("gpu", []string{driverName, "other.test"}, a, shared)
	w.put("nic", []string{"other.test"}, b)
	early := pod("early", "early")
	w.put("early", one, early)
	w.prepare(early) // the driver is connected
	waiting, release := slow.Hold()
	defer release()
	ctx, cancel := context.WithCancel(t.Context())
	step := make(chan error, 1)
	go func() { step <- w.dra.Prepare(ctx, a) }()
	<-waiting
	cancel()
	if err := <-step; !errors.Is(err, context.Canceled) {
		t.Errorf("the step: got %v, want that it was cancelled", err)
	}
	end := make(chan error, 1)
	go func() { end <- w.dra.Unprepare(t.Context(), a.UID) }()
	w.prepare(b)
	w.unprepare(b)
	if len(waiting) > 0 || len(end) > 0 || !w.dra.Holds(a.UID) {
		t.Errorf("while the driver prepares: got %d calls, %d ends and %v, want that the end of the pod waits", len(waiting),
			len(end), w.dra.Holds(a.UID))
	}
	release()
	if err := <-end; err != nil {
		t.Error(err)
	}
	w.prepare(shared)
	w.asked(slow, "prepare early", "prepare gpu", "unprepare gpu", "prepare gpu")
	w.asked(other, "prepare nic", "unprepare nic", "unprepare gpu", "prepare gpu")
}

// waitingContext calls waits whenever something begins to wait with it.
type waitingContext struct {
	context.Context
	waits func()
}

func (c waitingContext) Done() <-chan struct{} {
	c.waits()
	return c.Context.Done()
}

// TestUnprepareIsGivenUp ends a pod again while a driver unprepares its ResourceClaim, for which another pod waits. The
// second end does not take the ResourceClaim from that pod.
func TestUnprepareIsGivenUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.driver(nil)
	a, b := pod("a", "gpu"), pod("b", "gpu")
	w.put("gpu", one, a, b)
	w.prepare(a)
	waiting, release := d.Hold()
	defer release()
	ctx, cancel := context.WithCancel(t.Context())
	step, next := make(chan error, 1), make(chan error, 1)
	go func() { step <- w.dra.Unprepare(ctx, a.UID) }()
	<-waiting
	cancel()
	if err := <-step; !errors.Is(err, context.Canceled) {
		t.Errorf("the step: got %v, want that it was cancelled", err)
	}
	queued := make(chan struct{})
	inLine := waitingContext{t.Context(), sync.OnceFunc(func() { close(queued) })}
	go func() { next <- w.dra.Prepare(inLine, b) }()
	<-queued
	if err := w.dra.Unprepare(waitingContext{t.Context(), release}, a.UID); err != nil {
		t.Error(err)
	}
	if err := <-next; err != nil {
		t.Error(err)
	}
	w.asked(d, "prepare gpu", "unprepare gpu", "prepare gpu")
	w.has(b, "nodelet.test/fake=uid-gpu")
}

// TestRollingUpdate checks that while a driver is updated, two instances of it are there; the newest serves, and the
// older when that is gone.
func TestRollingUpdate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.driver(nil)
	p := pod("a", "gpu")
	w.put("gpu", one, p)
	w.prepare(p)
	next := w.driver(func(c *fake.Config) { c.Instance = "-2" })
	w.Until("the new instance is asked", func() bool {
		if err := w.dra.Unprepare(t.Context(), p.UID); err != nil {
			t.Error(err)
		}
		w.prepare(p)
		return len(next.Calls()) > 0
	})
	next.Close()
	before := len(old.Calls())
	w.Until("the old instance is asked", func() bool {
		return w.dra.Unprepare(t.Context(), p.UID) == nil && len(old.Calls()) > before
	})
}

// TestServices checks that a driver is called by a version that both sides support; one without a supported version
// is refused.
func TestServices(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.driver(func(c *fake.Config) {
		c.Services = []string{"v9.DRAPlugin", v1beta1.DRAPluginService, api.DRAPluginService}
	})
	p := pod("a", "gpu")
	w.put("gpu", one, p)
	w.prepare(p)
	w.has(p, "nodelet.test/fake=uid-gpu")
	w.unprepare(p)
	unsupported, err := fake.Start(fake.Config{Root: w.Dir, Name: "new.test", Services: []string{"v9.DRAPlugin"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(unsupported.Close)
	w.Until("the driver is refused", func() bool {
		got := unsupported.Registrations()
		return len(got) > 0 && strings.Contains(got[0].Error, `it serves ["v9.DRAPlugin"]`)
	})
}

// TestSlices checks that ResourceSlices of drivers that are away go, those of drivers that have not come back after
// the start too; others stay.
func TestSlices(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.driver(nil)
	p := pod("a", "gpu")
	w.put("gpu", one, p)
	w.prepare(p) // it is connected
	w.mu.Lock()
	w.slices, w.broken = []string{driverName, "lost.test"}, true
	w.mu.Unlock()
	w.restart()
	w.Until("those of the driver that does not come back go", func() bool { return !w.sliced("lost.test") })
	w.prepare(p)
	w.mu.Lock()
	w.slices, w.broken = []string{driverName, "other.test"}, true
	w.mu.Unlock()
	d.Close()
	w.Until("those of the driver that has gone go", func() bool { return !w.sliced(driverName) })
	if !w.sliced("other.test") {
		t.Error("the ResourceSlices of another driver: got them deleted, want them still there")
	}
}

// TestDamagedFile checks that a file that cannot be read is set aside, and the node starts.
func TestDamagedFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.driver(nil)
	p := pod("a", "gpu")
	w.put("gpu", one, p)
	w.prepare(p)
	w.Kill()
	text, err := os.ReadFile(w.file())
	if err != nil {
		t.Fatal(err)
	}
	damaged := []byte(strings.Replace(string(text), "gpu", "cpu", 1))
	if err := os.WriteFile(w.file(), damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	w.begin()
	if w.dra.Holds(p.UID) {
		t.Error("a file that cannot be trusted: got its claims, want none")
	}
	if aside, err := os.ReadFile(w.file() + ".damaged"); err != nil || string(aside) != string(damaged) {
		t.Errorf("damaged file: got %q, %v, want it moved aside unchanged", aside, err)
	}
	w.prepare(p)
	w.has(p, "nodelet.test/fake=uid-gpu")
}

// TestUnreadableFile checks that a file that cannot be read just now is not taken for a damaged one and moved away.
func TestUnreadableFile(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	file := filepath.Join(root, "dra_manager_state")
	if err := os.Mkdir(file, 0o700); err != nil { // it cannot be read as a file, like one on a bad disk
		t.Fatal(err)
	}
	if _, err := dra.New(dra.Config{Root: root}); err == nil {
		t.Error("got no error, want that of the read")
	}
	if _, err := os.Lstat(file); err != nil {
		t.Errorf("file after New: got %v, want it in its place", err)
	}
}

// TestContainers checks that a container has the devices of the claims and requests that it names, also by
// alternatives and by extended resources.
func TestContainers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.driver(func(c *fake.Config) {
		c.Devices = func(*api.Claim) []*api.Device {
			return []*api.Device{
				{
					PoolName:     "p",
					DeviceName:   "d1",
					RequestNames: []string{"big"},
					CdiDeviceIds: []string{"x/y=1", "x/y=shared"},
					ShareId:      new("s"),
				},
				{
					PoolName:     "p",
					DeviceName:   "d2",
					RequestNames: []string{"small/first"},
					CdiDeviceIds: []string{"x/y=2", "x/y=shared"},
				},
				{PoolName: "p", DeviceName: "d3", CdiDeviceIds: []string{"x/y=all"}},
			}
		}
	})
	p := pod("a", "gpu", "ext")
	p.Spec.ResourceClaims = p.Spec.ResourceClaims[:1]
	p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "ext",
		RequestMappings: []corev1.ContainerExtendedResourceRequest{{
			ContainerName: "app",
			ResourceName:  "x.com/big",
			RequestName:   "big",
		}}}
	w.put("gpu", one, p)
	w.put("ext", one, p)
	w.prepare(p)
	c := &p.Spec.Containers[0]
	use := func(requests ...string) []corev1.ResourceClaim {
		all := []corev1.ResourceClaim{}
		for _, r := range requests {
			all = append(all, corev1.ResourceClaim{Name: "gpu", Request: r})
		}
		return all
	}
	for name, step := range map[string]struct {
		claims   []corev1.ResourceClaim
		extended bool
		want     []string
	}{
		"all":          {use(""), false, []string{"x/y=1", "x/y=shared", "x/y=2", "x/y=all"}},
		"one":          {use("big"), false, []string{"x/y=1", "x/y=shared", "x/y=all"}},
		"alternatives": {use("small"), false, []string{"x/y=2", "x/y=shared", "x/y=all"}},
		"none":         {use(), false, nil},
		"extended":     {use(), true, []string{"x/y=1", "x/y=shared", "x/y=all"}},
	} {
		c.Resources.Claims, c.Resources.Requests = step.claims, nil
		if step.extended {
			c.Resources.Requests = corev1.ResourceList{"x.com/big": resource.MustParse("1")}
		}
		if got, err := w.dra.Devices(p, c); err != nil || !slices.Equal(got, step.want) {
			t.Errorf("%s: got %q, want %q; %v", name, got, step.want, err)
		}
	}
	c.Resources.Claims, c.Resources.Requests = use("big",
		"small"), corev1.ResourceList{"x.com/big": resource.MustParse("1")}
	got := w.dra.Resources(p, c)
	if len(got) != 2 || got[0].ClaimName != "gpu" || got[1].ClaimName != "ext" || len(got[0].ClaimResources) != 3 {
		t.Fatalf("got %v, want three resources of claim gpu, and claim ext", got)
	}
	first := got[0].ClaimResources[0]
	if first.DriverName != driverName || first.DeviceName != "d1" || first.GetShareId() != "s" ||
		len(first.CdiDevices) != 2 {
		t.Errorf("got %v, want device d1 of %s with share s and 2 CDI devices", first, driverName)
	}
	if err := w.dra.Prepare(t.Context(), p); err != nil {
		t.Error(err)
	}
}
