package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// sized returns equal requests and limits, with CPU in thousandths and memory in MiB.
func sized(cpu, memory int64) corev1.ResourceRequirements {
	list := corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(cpu, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(memory<<20, resource.BinarySI)}
	return corev1.ResourceRequirements{Requests: list, Limits: list}
}

func sizeFor(cpu, memory int64) podstate.Size {
	return podstate.Size{Shares: cpu * 1024 / 1000, Quota: cpu * 100, Period: 100000, Memory: memory << 20}
}

// resized is a running pod with the containers a and b, each created with 100m and 100 MiB. The test then allocates
// other sizes to it.
type resized struct {
	d      podstate.Desired
	o      podstate.Observed
	memory podstate.Memory
}

func newResized(t *testing.T, a, b [2]int64) *resized {
	pod := podOf(t, `{spec: {restartPolicy: Always, containers: [
		{name: a, image: x}, {name: b, image: x, resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]}]}}`)
	r := &resized{
		d:      podstate.Desired{Pod: pod},
		o:      podstate.Observed{Now: time.Unix(1000, 0), Node: nodeWith()},
		memory: podstate.NewMemory(),
	}
	r.o.Memory = r.memory.Recall()
	r.memory.Prepared = true
	r.memory.PodSize = ptr(sizeFor(200, 200))
	r.o.Sandboxes = []podstate.Sandbox{{ID: "sandbox", Ready: true, IPs: []string{"10.0.0.1"}}}
	for _, name := range []string{"a", "b"} {
		r.o.Containers = append(r.o.Containers, podstate.Container{
			ID:        name + ".0",
			Name:      name,
			SandboxID: "sandbox",
			State:     podstate.ContainerRunning,
			StartedAt: r.o.Now,
			Size:      ptr(sizeFor(100, 100)),
			Made:      ptr(sized(100, 100)),
		})
	}
	r.allocate(2, a, b)
	return r
}

// restart forgets what only a running agent knows.
func (r *resized) restart() {
	r.memory = podstate.NewMemory()
	r.memory.Prepared, r.memory.PodSize = true, ptr(sizeFor(200, 200))
}

func (r *resized) allocate(generation int64, a, b [2]int64) {
	next := *r.d.Pod
	next.Generation, next.Spec.Containers = generation, slices.Clone(next.Spec.Containers)
	r.d.Pod = &next
	r.d.Pod.Spec.Containers[0].Resources, r.d.Pod.Spec.Containers[1].Resources = sized(a[0], a[1]), sized(b[0], b[1])
	both := sized(a[0]+b[0], a[1]+b[1])
	before := beforeResize(r.d.Allocation, r.o.Containers)
	r.d.Allocation = &podstate.Allocation{
		Generation: generation,
		Before:     before,
		Pod:        sizeFor(a[0]+b[0], a[1]+b[1]),
		Requests:   both.Requests,
		Limits:     both.Limits,
		Containers: map[string]podstate.ContainerAllocation{
			"a": {Size: sizeFor(a[0], a[1]), Resources: sized(a[0], a[1])},
			"b": {Size: sizeFor(b[0], b[1]), Resources: sized(b[0], b[1])},
		},
	}
}

// plan returns the next plan and records its status as reported.
func (r *resized) plan() Plan {
	p := Pod(r.d, r.o)
	r.memory.Report(p.Status)
	r.d.Pod.Status = *p.Status
	return p
}

// do executes the steps.
func (r *resized) do(p Plan) {
	for _, s := range p.Steps {
		r.memory.Began(s)
		if s, ok := s.(podstate.Resize); ok {
			for i := range r.o.Containers {
				if r.o.Containers[i].ID == s.ID {
					r.o.Containers[i].Size = &s.To
				}
			}
		}
		result := podstate.Result{Step: s}
		if s, ok := s.(podstate.Resize); ok {
			result.Resources = r.d.Allocation.Containers[s.Name].Resources
		}
		r.memory.Ended(result, r.o.Now)
	}
}

// exit ends a container.
func (r *resized) exit(i int) {
	c := &r.o.Containers[i]
	c.State = podstate.ContainerExited
	c.ExitCode, c.FinishedAt = 137, r.o.Now
}

func (r *resized) check(t *testing.T, want ...string) Plan {
	t.Helper()
	p := r.plan()
	var got []string
	for _, s := range p.Steps {
		got = append(got, s.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("got steps\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	return p
}

func condition(st *corev1.PodStatus, kind corev1.PodConditionType) *corev1.PodCondition {
	i := slices.IndexFunc(st.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &st.Conditions[i]
}

// TestResizeOrder checks that the pod's cgroup grows before its containers and shrinks after them; where one grows
// and the other shrinks it does both.
func TestResizeOrder(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b [2]int64
		want []string
	}{
		{"nothing", [2]int64{100, 100}, [2]int64{100, 100}, nil},
		{"up", [2]int64{200, 200}, [2]int64{100, 100}, []string{
			"resize pod to shares 307, quota 30000/100000, memory 314572800",
			"resize container a (a.0) to shares 204, quota 20000/100000, memory 209715200",
		}},
		{"down", [2]int64{50, 50}, [2]int64{50, 100}, []string{
			"resize container a (a.0) to shares 51, quota 5000/100000, memory 52428800",
			"resize container b (b.0) to shares 51, quota 5000/100000, memory 104857600",
			"resize pod to shares 102, quota 10000/100000, memory 157286400",
		}},
		{"CPU up and memory down", [2]int64{200, 50}, [2]int64{100, 100}, []string{
			"resize pod to shares 307, quota 30000/100000, memory 209715200",
			"resize container a (a.0) to shares 204, quota 20000/100000, memory 52428800",
			"resize pod to shares 307, quota 30000/100000, memory 157286400",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newResized(t, c.a, c.b)
			var got []string
			for range 5 {
				p := r.plan()
				for _, s := range p.Steps {
					got = append(got, s.String())
				}
				if wantCondition := len(p.Steps) > 0; (condition(p.Status, corev1.PodResizeInProgress) != nil) != wantCondition {
					t.Errorf("%d steps left: got conditions %s", len(p.Steps), conditionsText(p.Status.Conditions))
				}
				r.do(p)
				r.o.Now = r.o.Now.Add(time.Minute)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got steps\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(c.want, "\n  "))
			}
			st := r.plan().Status
			if got := st.ContainerStatuses[0].Resources; !podutil.SameResources(*got, sized(c.a[0], c.a[1])) {
				t.Errorf("container a: got %v, want its allocated size", got)
			}
			if got := st.Resources; !podutil.SameResources(*got, sized(c.a[0]+c.b[0], c.a[1]+c.b[1])) {
				t.Errorf("pod: got %v, want its allocated size", got)
			}
		})
	}
}

// TestResizeRestarts checks that a container whose resize policy requires it is stopped and recreated, at once and
// regardless of the restart policy.
func TestResizeRestarts(t *testing.T) {
	r := newResized(t, [2]int64{100, 100}, [2]int64{100, 200})
	r.d.Pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	r.do(r.check(t, "stop container b (b.0): Container b resize requires restart",
		"resize pod to shares 204, quota 20000/100000, memory 314572800"))
	r.exit(1)
	p := r.check(t, "ensure image x () for b attempt 1")
	if condition(p.Status, corev1.PodResizeInProgress) != nil {
		t.Error("a container that does not run: got condition PodResizeInProgress, want none")
	}
	r.do(p)
	r.check(t, "create container b attempt 1 in sandbox")
}

// TestShrinksFirst checks that no container gets more memory while another one still has to get less: together they
// would have more than the pod's cgroup. The wait says so.
func TestShrinksFirst(t *testing.T) {
	const grows = "resize container a (a.0) to shares 102, quota 10000/100000, memory 157286400"
	const shrinks = "resize container b (b.0) to shares 102, quota 10000/100000, memory 52428800"
	refused := &podstate.Problem{Message: "below current usage"}
	for _, c := range []struct {
		name string
		// restarts: b does so for its new size, or else it changes in place.
		restarts bool
		first    string
		then     func(r *resized, p Plan)
		want     []string
	}{
		{"in place", false, shrinks, func(r *resized, p Plan) { r.do(p) }, []string{grows}},
		{"in flight", false, shrinks, func(r *resized, p Plan) { r.memory.Began(p.Steps[0]) }, nil},
		{"refused", false, shrinks, func(r *resized, p Plan) {
			r.memory.Began(p.Steps[0])
			r.memory.Ended(podstate.Result{Step: p.Steps[0], Problem: refused}, r.o.Now)
		}, nil},
		{"refused again", false, shrinks, func(r *resized, p Plan) {
			r.memory.Began(p.Steps[0])
			r.memory.Ended(podstate.Result{Step: p.Steps[0], Problem: refused}, r.o.Now)
			r.o.Now = r.o.Now.Add(podstate.StepRetryFirst)
		}, []string{shrinks}},
		{"ended", false, shrinks, func(r *resized, _ Plan) { r.exit(1) },
			[]string{"ensure image x () for b attempt 1", grows}},
		{"restarts", true, "stop container b (b.0): Container b resize requires restart",
			func(r *resized, p Plan) { r.memory.Began(p.Steps[0]) }, nil},
		{"has ended to restart", true, "stop container b (b.0): Container b resize requires restart",
			func(r *resized, _ Plan) { r.exit(1) }, []string{"ensure image x () for b attempt 1", grows}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newResized(t, [2]int64{100, 150}, [2]int64{100, 50})
			if !c.restarts {
				r.d.Pod.Spec.Containers[1].ResizePolicy = nil
			}
			c.then(r, r.check(t, c.first))
			p := r.check(t, c.want...)
			held := slices.ContainsFunc(p.Waits, func(w Wait) bool {
				return w.For.String() == grows && w.Why == "begins when container b has its lower memory limit"
			})
			if held == slices.Contains(c.want, grows) {
				t.Errorf("got waits %v after steps %v", p.Waits, c.want)
			}
		})
	}
}

// TestShrinksFirstOfResizeInFlight checks that a container whose resize to more is in flight, but has been taken back,
// still has to get less.
func TestShrinksFirstOfResizeInFlight(t *testing.T) {
	r := newResized(t, [2]int64{100, 100}, [2]int64{100, 200})
	r.d.Pod.Spec.Containers[1].ResizePolicy = nil
	r.memory.PodSize = ptr(sizeFor(200, 300))
	p := r.check(t, "resize container b (b.0) to shares 102, quota 10000/100000, memory 209715200")
	r.memory.Began(p.Steps[0])
	r.allocate(3, [2]int64{100, 200}, [2]int64{100, 100})
	r.check(t)
}

// TestResizeStatus checks that the status shows the previous resources of a container until it has the allocated
// ones. AllocatedResources change at once.
func TestResizeStatus(t *testing.T) {
	r := newResized(t, [2]int64{100, 100}, [2]int64{100, 100})
	r.plan()
	r.allocate(3, [2]int64{200, 200}, [2]int64{100, 100})
	st := r.plan().Status
	a := st.ContainerStatuses[0]
	if a.Resources.Limits.Cpu().MilliValue() != 100 || a.AllocatedResources.Cpu().MilliValue() != 200 {
		t.Errorf("container a: got %v, allocated %v", a.Resources, a.AllocatedResources)
	}
	if st.Resources.Limits.Cpu().MilliValue() != 200 || st.AllocatedResources.Cpu().MilliValue() != 300 {
		t.Errorf("pod: got %v, allocated %v", st.Resources, st.AllocatedResources)
	}
	if c := condition(st, corev1.PodResizeInProgress); c == nil || c.ObservedGeneration != 3 || c.Reason != "" {
		t.Errorf("got conditions %+v", st.Conditions)
	}
}

// TestResizeFails checks that a failure is reported in the condition, and delays only a resize to the same size.
func TestResizeFails(t *testing.T) {
	r := newResized(t, [2]int64{100, 50}, [2]int64{100, 100})
	p := r.check(t, "resize container a (a.0) to shares 102, quota 10000/100000, memory 52428800")
	if s := p.Steps[0].(podstate.Resize); !s.LowersMemory {
		t.Error("got LowersMemory false, want true")
	}
	r.memory.Began(p.Steps[0])
	r.memory.Ended(podstate.Result{Step: p.Steps[0], Problem: &podstate.Problem{Message: "in use"}}, r.o.Now)
	p = r.check(t)
	c := condition(p.Status, corev1.PodResizeInProgress)
	if c == nil || c.Reason != corev1.PodReasonError || c.Message != "in use" || p.Wake != r.o.Now.Add(time.Second) {
		t.Errorf("got condition %+v, wake %v", c, p.Wake)
	}
	r.allocate(3, [2]int64{100, 60}, [2]int64{100, 100})
	r.check(t, "resize container a (a.0) to shares 102, quota 10000/100000, memory 62914560")
	r.allocate(4, [2]int64{100, 100}, [2]int64{100, 100})
	if p = r.check(t); condition(p.Status, corev1.PodResizeInProgress) != nil {
		t.Error("the resize was withdrawn: got its condition, want none")
	}
}

// TestResizeTakenBack checks that a resize is in progress as long as an earlier one to another size is in flight, which
// may have had its effect.
func TestResizeTakenBack(t *testing.T) {
	r := newResized(t, [2]int64{50, 50}, [2]int64{100, 100})
	p := r.check(t, "resize container a (a.0) to shares 51, quota 5000/100000, memory 52428800")
	r.memory.Began(p.Steps[0])
	r.allocate(3, [2]int64{100, 100}, [2]int64{100, 100})
	if taken := r.check(t); condition(taken.Status, corev1.PodResizeInProgress) == nil {
		t.Error("an earlier resize is in flight: got no condition PodResizeInProgress")
	}
	r.memory.Ended(podstate.Result{Step: p.Steps[0], Resources: sized(50, 50)}, r.o.Now)
	r.do(r.check(t, "resize container a (a.0) to shares 102, quota 10000/100000, memory 104857600"))
	if p = r.check(t); condition(p.Status, corev1.PodResizeInProgress) != nil {
		t.Error("got condition PodResizeInProgress after the resize, want none")
	}
}

// TestFailedPodResize checks that the size of the pod's cgroup is read after a failed resize, which may have had its
// effect.
func TestFailedPodResize(t *testing.T) {
	for _, done := range []bool{false, true} {
		r := newResized(t, [2]int64{200, 200}, [2]int64{100, 100})
		before, after := sizeFor(200, 200), r.d.Allocation.Pod
		resize := "resize pod to " + after.String()
		p := r.check(t, resize)
		r.memory.Began(p.Steps[0])
		r.memory.Ended(podstate.Result{Step: p.Steps[0], Problem: &podstate.Problem{Message: "no answer"}}, r.o.Now)
		p = r.check(t, "prepare directories and cgroup")
		if c := condition(p.Status, corev1.PodResizeInProgress); c == nil || c.Message != "no answer" {
			t.Errorf("got condition %+v, want no answer", c)
		}
		has := before
		if done {
			has = after
		}
		r.memory.Began(p.Steps[0])
		r.memory.Ended(podstate.Result{Step: p.Steps[0], PodSize: &has}, r.o.Now)
		if done {
			r.do(r.check(t, "resize container a (a.0) to "+sizeFor(200, 200).String()))
			if p = r.check(t); condition(p.Status, corev1.PodResizeInProgress) != nil {
				t.Error("got condition PodResizeInProgress after the resize, want none")
			}
			continue
		}
		r.check(t)
		r.o.Now = r.o.Now.Add(podstate.StepRetryFirst)
		r.check(t, resize)
	}
}

// TestFailedPodResizeHoldsNothingBack checks that a container that has crashed restarts although the pod's cgroup
// cannot grow, and that it waits only for the first attempt at each size.
func TestFailedPodResizeHoldsNothingBack(t *testing.T) {
	r := newResized(t, [2]int64{100, 100}, [2]int64{100, 100})
	crashed := &r.o.Containers[0]
	crashed.State, crashed.FinishedAt = podstate.ContainerExited, r.o.Now
	crashed.ExitCode = 1
	r.do(r.check(t, "ensure image x () for a attempt 1"))
	for i, size := range []int64{200, 300} {
		r.allocate(int64(3+i), [2]int64{size, size}, [2]int64{100, 100})
		p := r.check(t, "resize pod to "+r.d.Allocation.Pod.String())
		r.memory.Began(p.Steps[0])
		r.check(t)
		r.memory.Ended(podstate.Result{Step: p.Steps[0], Problem: &podstate.Problem{Message: "refused"}}, r.o.Now)
		p = r.check(t, "prepare directories and cgroup")
		r.memory.Began(p.Steps[0])
		r.memory.Ended(podstate.Result{Step: p.Steps[0], PodSize: ptr(sizeFor(200, 200))}, r.o.Now)
		r.check(t, "create container a attempt 1 in sandbox")
		r.o.Now = r.o.Now.Add(podstate.StepRetryFirst)
	}
}

// TestResizeAfterRestart checks that after a restart the agent does not remember a resize and compares the runtime's
// numbers. Equivalent numbers cause no step.
func TestResizeAfterRestart(t *testing.T) {
	r := newResized(t, [2]int64{100, 100}, [2]int64{100, 100})
	for i := range r.o.Containers {
		r.o.Containers[i].Made = nil
		r.o.Containers[i].Size.Memory = 100 << 20
	}
	r.check(t)
	r.restart()
	r.d.Pod.Generation++ // resized since the status
	r.o.Containers[0].Size.Quota = 5000
	r.check(t, "resize container a (a.0) to shares 102, quota 10000/100000, memory 104857600")
	r.o.Containers[0].Size = nil
	r.check(t)
	r.d.Stop = &podstate.Stop{Cause: podstate.StopDeleted, Deadline: r.o.Now}
	r.o.Containers[0].Size = ptr(sizeFor(1, 1))
	for _, s := range r.plan().Steps {
		if strings.HasPrefix(s.String(), "resize") {
			t.Errorf("a pod that ends: got step %s, want no resize", s)
		}
	}
}

// TestSizeOfRuntimePlugin checks that what a plugin of the runtime has chosen for a container is no resize: neither in
// the run of the agent that has made the container, nor in a later one, nor if a kubelet has made it and shows it so.
func TestSizeOfRuntimePlugin(t *testing.T) {
	r := newResized(t, [2]int64{100, 100}, [2]int64{100, 100})
	r.o.Containers[0].Size = &podstate.Size{Shares: 512, Quota: 50000, Period: 100000, Memory: 100 << 20}
	r.d.Pod.Status = *r.check(t).Status
	r.restart()
	r.check(t)
	r.o.Containers[0].Made = nil
	r.check(t)
	r.restart()
	r.d.Pod.Status.ContainerStatuses[0].Resources = ptr(sized(500, 100))
	p := r.check(t)
	if c := podutil.Condition(p.Status.Conditions, corev1.PodResizeInProgress); c != nil {
		t.Errorf("got condition %v, want none", c)
	}
	r.restart()
	r.d.Pod.Generation++ // a kubelet may have begun a resize
	r.check(t, "resize container a (a.0) to shares 102, quota 10000/100000, memory 104857600")
}

// TestResizeOfKubeletGoesOn checks that a resize back to the size at creation, which a kubelet has begun, goes on: the
// agent that has made the container does not know that the kubelet had resized it. Only the status says so.
func TestResizeOfKubeletGoesOn(t *testing.T) {
	r := newResized(t, [2]int64{100, 100}, [2]int64{100, 100})
	r.plan()
	r.restart()
	r.o.Containers[0].Size = ptr(sizeFor(100, 200))
	r.d.Pod.Status.Conditions = append(r.d.Pod.Status.Conditions,
		corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue})
	r.check(t) // a plugin of the runtime has chosen that
	r.restart()
	r.d.Pod.Status.ContainerStatuses[0].Resources = ptr(sized(100, 200))
	r.d.Pod.Status.Conditions = append(r.d.Pod.Status.Conditions,
		corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue})
	p := r.check(t, "resize container a (a.0) to shares 102, quota 10000/100000, memory 104857600")
	shown := p.Status.ContainerStatuses[0].Resources
	if condition(p.Status, corev1.PodResizeInProgress) == nil || !podutil.SameResources(*shown, sized(100, 200)) {
		t.Errorf("got resources %v, conditions %v, want the larger ones and PodResizeInProgress", shown, p.Status.Conditions)
	}
	r.do(p)
	if p = r.check(t); condition(p.Status, corev1.PodResizeInProgress) != nil {
		t.Errorf("got conditions %v after the resize, want no PodResizeInProgress", p.Status.Conditions)
	}
}

// TestResizeBeforeRestart checks that after a restart of the agent a resize is repeated, with its condition and event,
// only if the status does not show that it was done. The runtime does not say what a container requests of memory, the
// status does not say which limits are those of the pod.
func TestResizeBeforeRestart(t *testing.T) {
	for _, c := range []struct{ reported, podLimits bool }{{true, false}, {true, true}, {false, false}, {false, true}} {
		reported := c.reported
		r := newResized(t, [2]int64{100, 100}, [2]int64{100, 100})
		r.plan()
		half := sized(100, 50)
		r.allocate(3, [2]int64{100, 100}, [2]int64{100, 100})
		r.d.Pod.Spec.Containers[0].Resources.Requests = half.Requests
		if c.podLimits {
			r.d.Pod.Spec.Containers[0].Resources.Limits = nil
		}
		a := r.d.Allocation.Containers["a"]
		a.Resources.Requests = half.Requests
		r.d.Allocation.Containers["a"] = a
		resize := "resize container a (a.0) to " + a.Size.String()
		before := r.check(t, resize)
		r.do(before)
		if r.check(t); !reported {
			r.d.Pod.Status = *before.Status
		}
		r.restart()
		if reported {
			r.check(t)
		} else {
			r.check(t, resize)
		}
	}
}

func TestWider(t *testing.T) {
	for _, c := range []struct{ a, b, want podstate.Size }{
		{podstate.Size{}, podstate.Size{}, podstate.Size{}},
		{podstate.Size{Memory: 5}, podstate.Size{Memory: 7}, podstate.Size{Memory: 7}},
		{podstate.Size{Memory: 5}, podstate.Size{Memory: -1}, podstate.Size{}},
		{podstate.Size{Quota: 10, Period: 100}, podstate.Size{Quota: 15, Period: 200}, podstate.Size{Quota: 10, Period: 100}},
		{podstate.Size{Quota: 10, Period: 100}, podstate.Size{Quota: -1, Period: 200}, podstate.Size{}},
		{podstate.Size{Shares: 2}, podstate.Size{Shares: 3, Memory: 1}, podstate.Size{Shares: 3}},
	} {
		if got := c.a.Wider(c.b); got != c.want {
			t.Errorf("%v and %v: got %v, want %v", c.a, c.b, got, c.want)
		}
		if got := c.b.Wider(c.a); got != c.want {
			t.Errorf("%v and %v: got %v, want %v", c.b, c.a, got, c.want)
		}
	}
}

// TestResizeEndsBackOff checks that a container that crashes restarts at once when it gets other resources: it may have
// crashed for want of memory.
func TestResizeEndsBackOff(t *testing.T) {
	r := newResized(t, [2]int64{100, 100}, [2]int64{100, 100})
	r.do(r.check(t)) // nothing to do
	crashed := &r.o.Containers[0]
	crashed.State, crashed.FinishedAt = podstate.ContainerExited, r.o.Now
	crashed.Attempt, crashed.ExitCode = 5, 137
	r.o.Now = r.o.Now.Add(time.Second)
	if p := r.check(t); p.Wake.IsZero() {
		t.Error("got no wake-up, want one at the end of the back-off")
	}
	r.allocate(3, [2]int64{100, 200}, [2]int64{100, 100})
	r.do(r.check(t, "ensure image x () for a attempt 6", "resize pod to shares 204, quota 20000/100000, memory 314572800"))
	r.memory.PodSize = &r.d.Allocation.Pod
	r.check(t, "create container a attempt 6 in sandbox")
}
