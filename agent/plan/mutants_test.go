package plan

import (
	"flag"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// mutantRuns is how many simulated runs may pass before the simulation must notice a wrong rule.
const mutantRuns = 3000

// TestMutants gives wrong facts to plan, or changes its decisions, as a mistake in one of its rules would. The
// simulation must notice each of these mutants, and each of its invariants must notice one. A rule without such a check
// could be lost unnoticed.
func TestMutants(t *testing.T) {
	var mu sync.Mutex
	noticed := map[string]bool{}
	t.Run("each", func(t *testing.T) {
		for name, mutate := range mutants {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				invariant := noticedBy(t, mutate)
				mu.Lock()
				defer mu.Unlock()
				noticed[invariant] = true
			})
		}
	})
	if f := flag.Lookup("test.run").Value.String(); strings.Contains(f, "/") {
		return // not all of them have run
	}
	for _, invariant := range documented(t) {
		if !noticed[invariant] {
			t.Errorf("invariant %s: got no mutant that it notices first, want one", invariant)
		}
	}
}

// noticedBy returns the invariant that notices a mutant.
func noticedBy(t *testing.T, mutate mutant) string {
	for seed := uint64(1); seed <= mutantRuns; seed++ {
		l := newRun(seed, wideFaults, mutate.decide)
		l.bend = mutate.bend
		l.run()
		if l.broken != "" {
			t.Logf("%s noticed in run %d: %s", l.brokenBy, seed, l.broken)
			return l.brokenBy
		}
	}
	t.Errorf("got no broken rule in %d runs, want one", mutantRuns)
	return ""
}

// listed are the names at the beginning of an item of the list of invariants.
var listed = regexp.MustCompile(`(?m)^//   - ([A-Za-z, ]+):`)

// documented returns the names of the invariants in doc.go.
func documented(t *testing.T) (names []string) {
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range listed.FindAllStringSubmatch(string(text), -1) {
		names = append(names, strings.Split(item[1], ", ")...)
	}
	if len(names) < 20 {
		t.Fatalf("got the invariants %q in doc.go, want at least 20", names)
	}
	return names
}

type decision = func(podstate.Desired, podstate.Observed) Plan

// mutant is a wrong rule: a changed decision, or missing facts.
type mutant struct {
	decide decision
	bend   func(*podstate.Observed, *podstate.Memory)
}

var mutants = map[string]mutant{
	"what must never restart restarts": podChanged(func(d *podstate.Desired) {
		d.Pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
		for i := range d.Pod.Spec.Containers {
			d.Pod.Spec.Containers[i].RestartPolicy = nil
		}
	}),
	"what must restart does not": podChanged(
		func(d *podstate.Desired) { d.Pod.Spec.RestartPolicy = corev1.RestartPolicyNever },
	),
	"app containers do not wait for init containers": podChanged(
		func(d *podstate.Desired) { d.Pod.Spec.InitContainers = nil },
	),
	"init containers run side by side": podChanged(func(d *podstate.Desired) {
		d.Pod.Spec.Containers = append(slices.Clone(d.Pod.Spec.InitContainers), d.Pod.Spec.Containers...)
		d.Pod.Spec.InitContainers = nil
	}),
	"app containers do not wait for a sidecar": factsChanged(func(o *podstate.Observed) {
		probes := map[string]podstate.ProbeResults{}
		for _, c := range o.Containers {
			v := o.Probes[c.ID]
			v.Startup = podstate.ProbeSuccess
			probes[c.ID] = v
		}
		o.Probes = probes
	}),
	"no back-off": factsChanged(func(o *podstate.Observed) {
		o.Containers = slices.Clone(o.Containers)
		for i := range o.Containers {
			if c := &o.Containers[i]; !c.EndedAt.IsZero() {
				c.EndedAt = c.EndedAt.Add(-time.Hour)
			}
		}
	}),
	"all containers restart although only one should": podChanged(func(d *podstate.Desired) {
		for _, c := range d.Pod.Spec.Containers {
			for i := range c.RestartPolicyRules {
				c.RestartPolicyRules[i].Action = corev1.ContainerRestartRuleActionRestartAllContainers
			}
		}
	}),
	"a reset removes no containers": stepsDropped(func(s podstate.Step) bool {
		r, is := s.(podstate.RemoveContainer)
		return is && r.KeepLog
	}),
	"a reset ends every back-off": forgotten(func(_ *podstate.Observed, m *podstate.Memory) {
		if m.Reported == nil {
			return
		}
		m.Reported = m.Reported.DeepCopy()
		for _, list := range [][]corev1.ContainerStatus{m.Reported.InitContainerStatuses, m.Reported.ContainerStatuses} {
			for i := range list {
				if end := list[i].LastTerminationState.Terminated; end != nil && end.Reason == podutil.ReasonRestartingAll {
					end.FinishedAt = metav1.Time{}
				}
			}
		}
	}),
	"a container that the agent stops requests a reset": forgotten(func(o *podstate.Observed, m *podstate.Memory) {
		m.Instances = maps.Clone(m.Instances)
		for _, c := range o.Containers {
			if c.ExitCode == 1 || c.ExitCode == 2 { // with another code it requests none
				delete(m.Instances, c.ID)
			}
		}
	}),
	"a reset begins before its marker file exists": factsChanged(func(o *podstate.Observed) {
		if last := o.Memory.Reported(); last != nil && podutil.IsTrue(last, corev1.AllContainersRestarting) {
			o.ResetMark = podstate.ResetRemoving
		}
	}),
	"a reset ends with the removal of its requester": {decide: func(d podstate.Desired, o podstate.Observed) Plan {
		if o.ResetMark == podstate.ResetRemoving && !asksForReset(d, o) {
			o.ResetMark = podstate.ResetRemoved
		}
		return Pod(d, o)
	}},
	"a restarted agent does not know of a reset": factsChanged(func(o *podstate.Observed) {
		if o.Memory.Reported() == nil {
			o.ResetMark = podstate.ResetUnmarked
		}
	}),
	"the back-off never grows": stepsChanged(func(s podstate.Step) podstate.Step {
		if c, ok := s.(podstate.CreateContainer); ok {
			c.Backoff = backoffFirst
			return c
		}
		return s
	}),
	"a preStop hook runs twice": instancesForgotten(func(i *podstate.InstanceMemory) { i.PreStopped = false }),
	"a preStop hook that failed is not tried again": forgotten(func(_ *podstate.Observed, m *podstate.Memory) {
		m.Failures = maps.Clone(m.Failures)
		maps.DeleteFunc(m.Failures, func(key podstate.Key, _ podstate.Failure) bool {
			return key.Kind == podstate.KindPreStop
		})
	}),
	"preStop hooks do not run": factsChanged(func(o *podstate.Observed) {
		o.Containers = slices.Clone(o.Containers)
		for i := range o.Containers {
			o.Containers[i].PreStop = false
		}
	}),
	"an init container runs again beside the app": planChanged(func(_ podstate.Desired, o podstate.Observed, p *Plan) {
		first, app := podstate.Newest(o.Containers, "init0"), podstate.Newest(o.Containers, "app0")
		if first == nil || first.State != podstate.ContainerExited ||
			app == nil || app.State != podstate.ContainerRunning || app.SandboxID != first.SandboxID {
			return
		}
		ensured := o.Memory.Image(podstate.EnsureImage{Container: first.Name})
		if ensured.Image != "" && ensured.Attempt == first.Attempt {
			p.Steps = append(p.Steps, podstate.CreateContainer{
				Name: first.Name, Attempt: first.Attempt, SandboxID: first.SandboxID})
		}
	}),
	"a container is reported as ended when it starts": planChanged(func(_ podstate.Desired, _ podstate.Observed,
		p *Plan) {
		for _, step := range p.Steps {
			start, starts := step.(podstate.StartContainer)
			if st := podutil.StatusIn(p.Status.ContainerStatuses, start.Name); starts && st != nil {
				st.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
			}
		}
	}),
	"a stop is not seen":                              desiredChanged(func(d *podstate.Desired) { d.Stop = nil }),
	"a pod that has completed fails for a later stop": stopChanged(func(s *podstate.Stop) { s.New = false }),
	"a pod that a stop has ended keeps its result":    factsChanged(func(o *podstate.Observed) { o.StopBegun = false }),
	"a stop that was begun is taken for a new one":    stopChanged(func(s *podstate.Stop) { s.New = true }),
	"devices are not awaited":                         desiredChanged(func(d *podstate.Desired) { d.DevicesMissing = "" }),
	"a refused pod runs":                              desiredChanged(func(d *podstate.Desired) { d.Rejected = nil }),
	"a stop gives too much time": stepsChanged(func(s podstate.Step) podstate.Step {
		if c, ok := s.(podstate.StopContainer); ok {
			c.Deadline = c.Deadline.Add(time.Minute)
			return c
		}
		return s
	}),
	"an attempt is used twice": stepsChanged(func(s podstate.Step) podstate.Step {
		if c, ok := s.(podstate.CreateContainer); ok {
			c.Attempt = 0
			return c
		}
		return s
	}),
	"the logs of a static pod are not counted": factsChanged(func(o *podstate.Observed) { o.Logged = nil }),
	"sandboxes are not counted": stepsChanged(func(s podstate.Step) podstate.Step {
		if c, ok := s.(podstate.CreateSandbox); ok {
			c.Attempt = 0
			return c
		}
		return s
	}),
	"volumes are unmounted while they are being mounted": planChanged(func(d podstate.Desired, o podstate.Observed,
		p *Plan) {
		for _, step := range o.Memory.Running() {
			mount, is := step.(podstate.Mount)
			unmount := podstate.Unmount{Volume: mount.Volume}
			if is && Clearing(d, o) && o.Memory.InFlight(unmount.Key()) == nil {
				p.Steps = append(p.Steps, unmount)
			}
		}
	}),
	"volumes are unmounted while a container may be started": planChanged(func(d podstate.Desired, o podstate.Observed,
		p *Plan) {
		created := func(c *podstate.Container) bool { return c.State == podstate.ContainerCreated }
		if len(p.Steps) == 0 || !Clearing(d, o) || !podstate.Some(o.Containers, created) {
			return
		}
		for _, volume := range o.VolumesOnDisk {
			if o.Memory.InFlight(podstate.Mount{Volume: volume}.Key()) == nil {
				p.Steps = append(p.Steps, podstate.Unmount{Volume: volume})
			}
		}
	}),
	"volumes stay mounted":    stepsDropped(func(s podstate.Step) bool { _, is := s.(podstate.Unmount); return is }),
	"volumes are not mounted": stepsDropped(func(s podstate.Step) bool { _, is := s.(podstate.Mount); return is }),
	"claims stay prepared": stepsDropped(
		func(s podstate.Step) bool { _, is := s.(podstate.UnprepareClaims); return is },
	),
	"claims are not prepared": forgotten(func(_ *podstate.Observed,
		m *podstate.Memory) {
		m.ClaimsPrepared = true
	}),
	"containers do not wait for their images": forgotten(func(o *podstate.Observed, m *podstate.Memory) {
		m.Images = maps.Clone(m.Images)
		for key, step := range m.InFlight {
			if s, ensures := step.(podstate.EnsureImage); ensures {
				m.Images[key] = podstate.Image{Attempt: s.Attempt, Image: s.Image, At: o.Now}
			}
		}
	}),
	"an image that was pulled long ago is used": forgotten(func(o *podstate.Observed, m *podstate.Memory) {
		m.Images = maps.Clone(m.Images)
		for key, image := range m.Images {
			image.At = o.Now
			m.Images[key] = image
		}
	}),
	"containers do not wait for volumes":    podChanged(func(d *podstate.Desired) { d.Pod.Spec.Volumes = nil }),
	"that claims are prepared is not known": factsChanged(func(o *podstate.Observed) { o.ClaimsHeld = false }),
	"claims go before the containers": planChanged(func(d podstate.Desired, o podstate.Observed, p *Plan) {
		if stopping(d, o) && o.ClaimsHeld && len(o.Memory.Running()) == 0 {
			p.Steps = []podstate.Step{podstate.UnprepareClaims{}}
		}
	}),
	"an ended pod is not reclaimed": planChanged(func(d podstate.Desired, _ podstate.Observed, p *Plan) {
		if p.Released && d.Reclaim {
			p.Steps = nil
		}
	}),
	"reclaimed with containers left": planChanged(func(d podstate.Desired, _ podstate.Observed, p *Plan) {
		p.Reclaimed = p.Released && d.Reclaim
	}),
	"the cgroup stays": stepsDropped(
		func(s podstate.Step) bool { _, is := s.(podstate.RemoveCgroup); return is },
	),
	"created containers stay so": stepsDropped(
		func(s podstate.Step) bool { _, is := s.(podstate.StartContainer); return is },
	),
	"released while volumes are held": planChanged(func(d podstate.Desired, o podstate.Observed, p *Plan) {
		p.Released = p.Released || Clearing(d, o) && len(o.Sandboxes) == 0 && len(o.VolumesOnDisk) > 0
	}),
	"released while containers run": planChanged(func(d podstate.Desired, o podstate.Observed,
		p *Plan) {
		p.Released = p.Released || stopping(d, o)
	}),
	"done with traces left": planChanged(func(d podstate.Desired, _ podstate.Observed, p *Plan) {
		p.Done = p.Done || p.Released && d.Stop != nil && d.Stop.Cause == podstate.StopOrphaned
	}),
	"a dead sandbox keeps its network": forgotten(func(o *podstate.Observed, m *podstate.Memory) {
		all := map[string]bool{}
		for _, box := range o.Sandboxes {
			all[box.ID] = true
		}
		m.StoppedSandboxes = all
	}),
	"the sandbox goes before its containers": planChanged(func(d podstate.Desired, o podstate.Observed, p *Plan) {
		if stopping(d, o) && len(o.Sandboxes) > 0 && len(o.Memory.Running()) == 0 && len(p.Steps) > 0 {
			p.Steps = []podstate.Step{podstate.StopSandbox{ID: o.Sandboxes[0].ID}}
		}
	}),
	"sidecars stop with the app containers": podChanged(func(d *podstate.Desired) {
		for i := range d.Pod.Spec.InitContainers {
			if d.Stop != nil {
				d.Pod.Spec.InitContainers[i].RestartPolicy = nil
			}
		}
	}),
	"sidecars stop in the order in which they started": podChanged(func(d *podstate.Desired) {
		if d.Stop != nil {
			slices.Reverse(d.Pod.Spec.InitContainers)
		}
	}),
	"steps on their way are forgotten": forgotten(func(_ *podstate.Observed, m *podstate.Memory) { m.InFlight = nil }),
	"failed steps are tried at once":   forgotten(func(_ *podstate.Observed, m *podstate.Memory) { m.Failures = nil }),
	"a sandbox that was never usable is made again at once": forgotten(func(_ *podstate.Observed, m *podstate.Memory) {
		m.Failures = maps.Clone(m.Failures)
		maps.DeleteFunc(m.Failures, func(key podstate.Key, f podstate.Failure) bool {
			return key.Kind == podstate.KindCreateSandbox && strings.HasPrefix(f.Message, "pod sandbox")
		})
	}),
	"old sandboxes stay until one is usable": planChanged(func(d podstate.Desired, o podstate.Observed, p *Plan) {
		if s := podstate.New(d, o); s.Current == nil && s.Ending == nil {
			p.Steps = slices.DeleteFunc(p.Steps, func(s podstate.Step) bool { _, is := s.(podstate.RemoveSandbox); return is })
		}
	}),
	"what failed to start is created again at once": forgotten(func(_ *podstate.Observed, m *podstate.Memory) {
		m.Unstarted = nil
	}),
	"why a container was stopped is forgotten": instancesForgotten(func(i *podstate.InstanceMemory) {
		i.Stop.Cause = podstate.CauseEnd
	}),
	"each container of a lost sandbox has a time of its own": instancesForgotten(func(i *podstate.InstanceMemory) {
		if i.Stop.Cause == podstate.CauseSandbox {
			i.Stop.Deadline = time.Time{}
		}
	}),
	"what is stopped in a lost sandbox counts as done":   stopForgotten(podstate.CauseSandbox),
	"what is stopped in an unknown state counts as done": stopForgotten(podstate.CauseUnknown),
	"hooks are not run": instancesForgotten(func(i *podstate.InstanceMemory) { i.Started = false }),
	"containers do not wait for the postStart hook of an earlier one": podChanged(func(d *podstate.Desired) {
		slices.Reverse(d.Pod.Spec.Containers)
	}),
	"liveness does not matter": factsChanged(func(o *podstate.Observed) {
		probes := map[string]podstate.ProbeResults{}
		for id, v := range o.Probes {
			v.Liveness = podstate.ProbeUnknown
			probes[id] = v
		}
		o.Probes = probes
	}),
	"a changed spec is ignored": desiredChanged(func(d *podstate.Desired) { d.Hashes = nil }),
	"the reported status is ignored": {
		decide: podChanged(func(d *podstate.Desired) { d.Pod.Status.ContainerStatuses = nil }).decide,
		bend:   func(_ *podstate.Observed, m *podstate.Memory) { m.Reported = nil },
	},
	"running containers are not observed": factsChanged(func(o *podstate.Observed) {
		o.Containers = slices.DeleteFunc(slices.Clone(o.Containers),
			func(c podstate.Container) bool { return c.State == podstate.ContainerRunning })
	}),
	"the end of a pod is not final": planChanged(func(_ podstate.Desired, _ podstate.Observed, p *Plan) {
		if podutil.IsTerminal(p.Status.Phase) && !p.Released {
			p.Status.Phase = corev1.PodRunning
		}
	}),
	"a terminal phase is reported too early": planChanged(func(d podstate.Desired, _ podstate.Observed, p *Plan) {
		if d.Stop != nil {
			p.Status.Phase = corev1.PodFailed
		}
	}),
	"every container is reported as ready": planChanged(func(_ podstate.Desired, _ podstate.Observed, p *Plan) {
		for i := range p.Status.ContainerStatuses {
			p.Status.ContainerStatuses[i].Ready = true
		}
	}),
	"the deadline is ignored": podChanged(func(d *podstate.Desired) { d.Pod.Spec.ActiveDeadlineSeconds = nil }),
	"a pod that completed before its deadline fails": planChanged(func(d podstate.Desired, o podstate.Observed, p *Plan) {
		s := podstate.New(d, o)
		if at := s.ActiveDeadline(); p.Status.Phase == corev1.PodSucceeded && !at.IsZero() && !o.Now.Before(at) {
			p.Status.Phase, p.Status.Reason = corev1.PodFailed, podutil.ReasonDeadlineExceeded
		}
	}),
	"the deadline comes early": podChanged(func(d *podstate.Desired) {
		if limit := d.Pod.Spec.ActiveDeadlineSeconds; limit != nil {
			d.Pod.Spec.ActiveDeadlineSeconds = ptr(*limit / 2)
		}
	}),
	"a resize is ignored": desiredChanged(func(d *podstate.Desired) { d.Allocation = nil }),
	"the pod's cgroup is not resized": stepsDropped(func(s podstate.Step) bool {
		_, is := s.(podstate.ResizePod)
		return is
	}),
	"the pod's cgroup shrinks at once": stepsChanged(func(s podstate.Step) podstate.Step {
		if r, ok := s.(podstate.ResizePod); ok {
			r.To = podstate.Size{Shares: 2, Quota: 1000, Period: 100000, Memory: 1 << 20}
			return r
		}
		return s
	}),
	"containers grow before the pod's cgroup": forgotten(func(_ *podstate.Observed,
		m *podstate.Memory) {
		m.PodSize = nil
	}),
	"a pod whose resize has failed counts as resized": forgotten(func(_ *podstate.Observed, m *podstate.Memory) {
		if f, failed := m.Failures[podstate.ResizePod{}.Key()]; failed && m.PodSize == nil {
			m.Prepared, m.PodSize = true, ptr(f.Step.(podstate.ResizePod).To)
		}
	}),
	"containers grow before others have shrunk": planChanged(func(_ podstate.Desired, o podstate.Observed, p *Plan) {
		for _, w := range p.Waits {
			if s, held := w.For.(podstate.Resize); held && w.Until.IsZero() && o.Memory.InFlight(s.Key()) == nil {
				p.Steps = append(p.Steps, s)
			}
		}
	}),
	"a resize never restarts": podChanged(func(d *podstate.Desired) {
		for _, list := range [][]corev1.Container{d.Pod.Spec.InitContainers, d.Pod.Spec.Containers} {
			for i := range list {
				list[i].ResizePolicy = nil
			}
		}
	}),
	"a resize always restarts": podChanged(func(d *podstate.Desired) {
		for _, list := range [][]corev1.Container{d.Pod.Spec.InitContainers, d.Pod.Spec.Containers} {
			for i := range list {
				list[i].ResizePolicy = []corev1.ContainerResizePolicy{
					{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer},
					{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
			}
		}
	}),
	"allocated resources are reported as actual": planChanged(func(d podstate.Desired, _ podstate.Observed, p *Plan) {
		for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
			for i := range list {
				if g := d.Allocation; g != nil && list[i].Resources != nil {
					list[i].Resources = ptr(g.Containers[list[i].Name].Resources)
				}
			}
		}
	}),
	"a pending resize is not reported": desiredChanged(func(d *podstate.Desired) {
		if d.Allocation != nil {
			g := *d.Allocation
			g.Pending = nil
			d.Allocation = &g
		}
	}),
	"a completed resize is repeated": instancesForgotten(func(i *podstate.InstanceMemory) { i.Resized = nil }),
	"the plan sets no wake-up time": planChanged(func(_ podstate.Desired, _ podstate.Observed,
		p *Plan) {
		p.Wake = time.Time{}
	}),
	"the plan wakes up at once": planChanged(func(_ podstate.Desired, o podstate.Observed, p *Plan) {
		if !p.Wake.IsZero() {
			p.Wake = o.Now
		}
	}),
	"each step is planned twice": planChanged(func(_ podstate.Desired, _ podstate.Observed,
		p *Plan) {
		p.Steps = append(p.Steps, p.Steps...)
	}),
}

// asksForReset reports whether an existing instance has requested a reset.
func asksForReset(d podstate.Desired, o podstate.Observed) bool {
	return slices.ContainsFunc(podstate.New(d, o).Slots, (*podstate.Slot).AsksForReset)
}

func stopping(d podstate.Desired, o podstate.Observed) bool { return podstate.New(d, o).Ending != nil }

func desiredChanged(change func(*podstate.Desired)) mutant {
	return mutant{decide: func(d podstate.Desired, o podstate.Observed) Plan {
		change(&d)
		return Pod(d, o)
	}}
}

// stopChanged plans for a copy of the pod's stop with a change.
func stopChanged(change func(*podstate.Stop)) mutant {
	return desiredChanged(func(d *podstate.Desired) {
		if d.Stop != nil {
			d.Stop = ptr(*d.Stop)
			change(d.Stop)
		}
	})
}

// podChanged plans for a copy of the pod with a changed spec.
func podChanged(change func(*podstate.Desired)) mutant {
	return desiredChanged(func(d *podstate.Desired) {
		d.Pod = d.Pod.DeepCopy()
		change(d)
	})
}

func factsChanged(change func(*podstate.Observed)) mutant {
	return mutant{decide: func(d podstate.Desired, o podstate.Observed) Plan {
		change(&o)
		return Pod(d, o)
	}}
}

// forgotten plans with a changed memory.
func forgotten(change func(*podstate.Observed, *podstate.Memory)) mutant {
	return mutant{decide: Pod, bend: change}
}

// stopForgotten plans without the stops that have a cause.
func stopForgotten(cause podstate.Cause) mutant {
	return instancesForgotten(func(i *podstate.InstanceMemory) {
		if i.Stop.Cause == cause {
			i.Stop = podstate.StopContainer{}
		}
	})
}

// instancesForgotten plans with a changed memory of each instance.
func instancesForgotten(change func(*podstate.InstanceMemory)) mutant {
	return forgotten(func(_ *podstate.Observed, m *podstate.Memory) {
		m.Instances = maps.Clone(m.Instances)
		for id, i := range m.Instances {
			changed := *i
			change(&changed)
			m.Instances[id] = &changed
		}
	})
}

func planChanged(change func(podstate.Desired, podstate.Observed, *Plan)) mutant {
	return mutant{decide: func(d podstate.Desired, o podstate.Observed) Plan {
		p := Pod(d, o)
		change(d, o, &p)
		return p
	}}
}

func stepsChanged(change func(podstate.Step) podstate.Step) mutant {
	return planChanged(func(_ podstate.Desired, _ podstate.Observed, p *Plan) {
		for i := range p.Steps {
			p.Steps[i] = change(p.Steps[i])
		}
	})
}

func stepsDropped(drop func(podstate.Step) bool) mutant {
	return planChanged(func(_ podstate.Desired, _ podstate.Observed,
		p *Plan) {
		p.Steps = slices.DeleteFunc(p.Steps, drop)
	})
}
