package managers

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/utils/cpuset"

	"github.com/nodelet/nodelet/agent/placement/memory"
	"github.com/nodelet/nodelet/agent/placement/numa"
	"github.com/nodelet/nodelet/agent/placement/policy"
	"github.com/nodelet/nodelet/host/topology"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

var (
	requests = flag.Int("requests", 100_000, "how many pods to admit")
	seed     = flag.Uint64("seed", 1, "where the random numbers start")
)

// perEpisode is how many pods are admitted with the same settings.
const perEpisode = 40

// TestRandomPods admits random pods on all machines, by both sides, and compares the answers.
func TestRandomPods(t *testing.T) {
	klog.SetLogger(logr.Discard())
	err := utilfeature.DefaultMutableFeatureGate.Set("CPUManagerPolicyAlphaOptions=true,PodLevelResources=true")
	if err != nil {
		t.Fatal(err)
	}
	total := tally{}
	for _, podResources := range []bool{false, true} {
		gate := fmt.Sprintf("PodLevelResourceManagers=%v", podResources)
		if err := utilfeature.DefaultMutableFeatureGate.Set(gate); err != nil {
			t.Fatal(err)
		}
		total.add(runAll(t, podResources))
	}
	t.Logf("%d machines, %d pods: %d admitted, %d refused; not compared: %d where the kubelet gave away CPUs that were "+
		"not free (kubernetes#140495), %d where it chose among four or more "+
		"NUMA nodes (its combinations overwrite each other), "+
		"%d times a pod that it refused had moved the memory that others have among their NUMA nodes",
		len(shapes), total.pods, total.admitted, total.refused, total.stolen, total.overwritten, total.left)
	if total.pods < *requests || total.admitted < total.pods/4 || total.refused < total.pods/20 {
		t.Errorf("got %d pods, %d admitted and %d refused: too few to say anything", total.pods, total.admitted,
			total.refused)
	}
	if known := total.stolen + total.overwritten + total.left; known > total.pods/50 {
		t.Errorf("got %d known differences, want at most 2 %% of the pods", known)
	}
}

// tally counts pods by what became of them.
type tally struct{ pods, admitted, refused, stolen, overwritten, left int }

func (a *tally) add(b tally) {
	a.pods += b.pods
	a.admitted += b.admitted
	a.refused += b.refused
	a.stolen += b.stolen
	a.overwritten += b.overwritten
	a.left += b.left
}

// runAll runs episodes on all machines, as many side by side as the process has CPUs.
func runAll(t *testing.T, podResources bool) tally {
	t.Helper()
	episodes := *requests/2/perEpisode/len(shapes) + 1
	next, results := make(chan int), make(chan tally)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := range next {
				e := &episode{
					t:     t,
					rand:  rand.New(rand.NewPCG(*seed, uint64(i))),
					shape: shapes[i%len(shapes)],
				}
				results <- e.run(podResources)
			}
		})
	}
	go func() {
		for i := range episodes * len(shapes) {
			next <- i
		}
		close(next)
		workers.Wait()
		close(results)
	}()
	var sum tally
	for r := range results {
		sum.add(r)
	}
	return sum
}

// episode is a sequence of pods on one machine with the same settings.
type episode struct {
	t        *testing.T
	rand     *rand.Rand
	shape    shape
	machine  *topology.Machine
	settings settings
	theirs   *kubelet
	ours     *nodelet
	pods     []*corev1.Pod
	tally    tally
	history  []string
	// counted are the counters that have increased; nil if they are not compared.
	counted map[string]bool
}

func (e *episode) run(podResources bool) tally {
	e.machine = e.shape.machine()
	for e.tally.pods < perEpisode && !e.t.Failed() {
		if !e.start(podResources) {
			continue
		}
		for e.tally.pods < perEpisode && e.step() {
		}
	}
	return e.tally
}

// start starts both sides with new settings. It reports whether they have started: both must, or none.
func (e *episode) start(podResources bool) bool {
	e.settings = e.randomSettings(podResources)
	e.pods, e.history = nil, nil
	var err, err2 error
	e.theirs, err = newKubelet(e.machine, e.settings)
	e.ours, err2 = newNodelet(e.machine, e.settings)
	if (err == nil) != (err2 == nil) {
		e.fail("start: nodelet: %v, kubelet: %v", err2, err)
	}
	return err == nil && err2 == nil
}

func (e *episode) fail(format string, args ...any) {
	e.t.Errorf("%s, %+v:\n%s\n%s", e.shape.name, e.settings, strings.Join(e.history, "\n"), fmt.Sprintf(format, args...))
}

func (e *episode) chance(percent int) bool { return e.rand.IntN(100) < percent }

func pick[T any](e *episode, from ...T) T { return from[e.rand.IntN(len(from))] }

func (e *episode) randomSettings(podResources bool) settings {
	nodes := len(e.machine.Nodes)
	s := settings{
		cpu:          e.chance(85),
		cpuOptions:   map[string]string{},
		memory:       e.chance(50),
		topology:     pick(e, "none", "best-effort", "restricted", "single-numa-node"),
		scope:        pick(e, "container", "pod"),
		podResources: podResources,
	}
	if nodes > 4 && s.topology != "none" {
		s.memory = s.memory && !s.cpu // the kubelet tries all combinations of all hints, which takes too long
	}
	for _, option := range []string{"full-pcpus-only", "distribute-cpus-across-numa", "align-by-socket",
		"distribute-cpus-across-cores", "strict-cpu-reservation", "prefer-align-cpus-by-uncorecache"} {
		if e.chance(30) {
			s.cpuOptions[option] = "true"
		}
	}
	if e.chance(40) {
		s.topologyOptions = map[string]string{"prefer-closest-numa-nodes": "true"}
	}
	e.reserve(&s)
	if s.memory {
		s.reservedMemory = memory.Reserved{}
		for id := range nodes {
			s.reservedMemory[id] = map[corev1.ResourceName]uint64{corev1.ResourceMemory: uint64(1+e.rand.IntN(4)) << 29}
		}
	}
	return s
}

// reserve reserves CPUs. With the options full-pcpus-only and distribute-cpus-across-numa they are whole cores of an
// even machine, because otherwise the kubelet may never return (kubernetes#140730).
func (e *episode) reserve(s *settings) {
	wholeCores := s.cpuOptions["full-pcpus-only"] != "" && s.cpuOptions["distribute-cpus-across-numa"] != ""
	if wholeCores && !even(e.machine) {
		delete(s.cpuOptions, "distribute-cpus-across-numa")
		wholeCores = false
	}
	s.count = 1 + e.rand.IntN(min(4, len(e.machine.CPUs)))
	if !wholeCores && e.chance(50) {
		return
	}
	var ids []int
	for range s.count {
		chosen := e.machine.CPUs[e.rand.IntN(len(e.machine.CPUs))]
		for _, c := range e.machine.CPUs {
			if c.ID == chosen.ID || wholeCores && c.Core == chosen.Core {
				ids = append(ids, c.ID)
			}
		}
	}
	s.reserved = cpuset.New(ids...)
}

// step does one thing on both sides. It reports whether to go on with these settings.
func (e *episode) step() bool {
	if len(e.pods) > 0 && e.chance(35) {
		i := e.rand.IntN(len(e.pods))
		pod := e.pods[i]
		if e.chance(30) {
			c := pod.Spec.Containers[0].Name
			e.history = append(e.history, "started "+pod.Name+" "+c)
			e.theirs.started(pod, c)
			e.ours.started(pod, c)
		} else {
			e.history = append(e.history, "removed "+pod.Name)
			e.theirs.remove(pod)
			e.ours.remove(pod)
			e.pods = append(e.pods[:i], e.pods[i+1:]...)
		}
		return e.compareAll()
	}
	return e.admit(e.randomPod())
}

// admit admits a pod on both sides.
func (e *episode) admit(pod *corev1.Pod) bool {
	e.tally.pods++
	free, devices := e.freeCPUs(), e.withDevices(pod)
	before := e.theirs.describeAll()
	e.history = append(e.history, "admit "+describePod(pod)+fmt.Sprintf(" devices %v", devices))
	var counted counters
	if e.counted != nil {
		counted = theirCounters(e.t)
	}
	want := e.theirs.admit(pod, devices)
	got := e.ours.admit(pod, devices)
	if e.known(pod, free, want.Message) {
		return false
	}
	e.compareCounters(counted)
	switch {
	case (got == nil) != want.Admit:
		e.fail("%s: nodelet: %v, kubelet: %+v", pod.Name, got, want)
		return false
	case got != nil:
		e.tally.refused++
		if got.Reason != want.Reason || anyKind(got.Message) != anyKind(want.Message) {
			e.fail("%s: got %s: %s\nwant %s: %s", pod.Name, got.Reason, got.Message, want.Reason, want.Message)
			return false
		}
		if e.theirs.describeAll() != before {
			e.tally.left++
			return false
		}
	default:
		e.tally.admitted++
		if got, want := e.ours.describe(pod), e.theirs.describe(e.t, pod); got != want {
			e.fail("%s: got %s\nwant %s", pod.Name, got, want)
			return false
		}
		e.pods = append(e.pods, pod)
	}
	return e.compareAll()
}

// anyKind makes the same text of messages about different kinds of memory: if several are short, the kubelet names any.
func anyKind(message string) string {
	return strings.NewReplacer("hugepages-2Mi", "memory", "hugepages-1Gi", "memory").Replace(message)
}

func (e *episode) compareAll() bool {
	got, want := e.ours.describeAll(), e.theirs.describeAll()
	if got != want {
		e.fail("got %s\nwant %s", got, want)
	}
	return got == want
}

// freeCPUs returns the CPUs that the next pod may get.
func (e *episode) freeCPUs() cpuset.CPUSet {
	if e.theirs.cpu == nil {
		return cpuset.New()
	}
	return e.ours.policy.CPU.Free(&e.ours.state.CPU)
}

// known reports whether the kubelet's answer is one of its known errors. Nodelet's answer must be valid.
func (e *episode) known(pod *corev1.Pod, free cpuset.CPUSet, message string) bool {
	if e.theirs.cpu == nil {
		return false
	}
	ours := e.ours.state.CPU.Containers[pod.UID]
	for name, set := range ours {
		if !set.IsSubsetOf(free) {
			e.fail("%s: container %s got %s, of which only %s are free", pod.Name, name, set, free)
			return true
		}
	}
	theirs := cpuset.New()
	for _, set := range e.theirs.given {
		theirs = theirs.Union(set)
	}
	outside := !e.theirs.whole.IsEmpty() && !theirs.IsSubsetOf(e.theirs.whole)
	if !even(e.machine) && (outside || !theirs.IsSubsetOf(free) || e.shared(pod)) {
		e.tally.stolen++
		return true
	}
	if !even(e.machine) && strings.Contains(message, "not enough cpus available") {
		e.tally.stolen++ // the container already had CPUs that were not free, so the numbers differ
		return true
	}
	spread := e.settings.cpuOptions["distribute-cpus-across-numa"] != ""
	if !spread || maps.EqualFunc(ours, e.theirs.given, cpuset.CPUSet.Equals) {
		return false
	}
	nodes := 0
	for _, of := range []map[string]cpuset.CPUSet{ours, e.theirs.given} {
		for _, set := range of {
			nodes = max(nodes, len(e.ours.policy.CPU.PerNode(set)))
		}
	}
	if nodes >= 4 || strings.Contains(message, "accounting error") {
		e.tally.overwritten++
		return true
	}
	return false
}

// shared reports whether the kubelet has given a CPU to two containers of the pod that run at the same time.
func (e *episode) shared(pod *corev1.Pod) bool {
	given := cpuset.New()
	for role, c := range podutil.Containers(&pod.Spec) {
		set, own := e.theirs.given[c.Name]
		if !own || role == podutil.RoleInit || podutil.ExclusiveCPUs(pod, c, e.settings.podResources) == 0 {
			continue
		}
		if !set.Intersection(given).IsEmpty() {
			return true
		}
		given = given.Union(set)
	}
	return false
}

// withDevices lets one container of the pod ask for devices, and returns those of the machine; mostly none.
func (e *episode) withDevices(pod *corev1.Pod) policy.Devices {
	if e.settings.topology == "none" || len(e.machine.Nodes) > 4 || pod.Spec.Resources != nil || e.chance(70) {
		return nil
	}
	r := policy.Resource{All: map[string]numa.Mask{}}
	aligned := e.chance(85)
	for i := range 2 + e.rand.IntN(6) {
		id := fmt.Sprint("d", i)
		r.All[id] = 0
		if aligned && e.chance(90) {
			r.All[id] = numa.MaskOf(e.rand.IntN(len(e.machine.Nodes)))
		}
		if aligned && e.chance(10) {
			r.All[id] |= numa.MaskOf(e.rand.IntN(len(e.machine.Nodes)))
		}
		if e.chance(80) {
			r.Free = append(r.Free, id)
		}
	}
	n := 1 + e.rand.IntN(3)
	if len(r.Free) < n {
		return nil // the scheduler sends no such pod; refusals by the device manager are not part of this test
	}
	c := &pod.Spec.Containers[e.rand.IntN(len(pod.Spec.Containers))]
	c.Resources.Limits[device] = *resource.NewQuantity(int64(n), resource.DecimalSI)
	return policy.Devices{device: r}
}

// randomPod returns a pod, mostly one that gets CPUs of its own.
func (e *episode) randomPod() *corev1.Pod {
	name := fmt.Sprintf("p%d", e.tally.pods)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)}}
	guaranteed := e.chance(85)
	for i := range e.rand.IntN(3) * e.rand.IntN(2) {
		c := e.randomContainer(fmt.Sprintf("i%d", i), guaranteed)
		if e.chance(35) {
			always := corev1.ContainerRestartPolicyAlways
			c.RestartPolicy = &always
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	for i := range 1 + e.rand.IntN(2)*e.rand.IntN(3) {
		pod.Spec.Containers = append(pod.Spec.Containers, e.randomContainer(fmt.Sprintf("c%d", i), guaranteed))
	}
	if e.chance(20) {
		e.withPodResources(pod)
	}
	return pod
}

func (e *episode) randomContainer(name string, guaranteed bool) corev1.Container {
	size := len(e.machine.CPUs)
	large, middle := fmt.Sprint(1+e.rand.IntN(size)), fmt.Sprint(1+e.rand.IntN(size)/2)
	cpus := pick(e, "1", "2", "2", "3", "4", "500m", "1500m", large, middle)
	list := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse(cpus),
		corev1.ResourceMemory: resource.MustParse(pick(e, "100Mi", "1Gi", "3Gi", "6Gi", "9Gi", "14Gi")),
	}
	if len(e.machine.Nodes) <= 4 && e.chance(20) {
		list["hugepages-2Mi"] = resource.MustParse(pick(e, "64Mi", "300Mi", "600Mi"))
	}
	if len(e.machine.Nodes) <= 2 && e.chance(10) {
		list["hugepages-1Gi"] = resource.MustParse(pick(e, "1Gi", "3Gi"))
	}
	c := corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: list, Limits: list.DeepCopy()}}
	if !guaranteed && e.chance(50) {
		delete(c.Resources.Limits, corev1.ResourceCPU)
	}
	return c
}

// withPodResources gives the pod resources of its own: about what its containers need, or more. Some containers then
// have none.
func (e *episode) withPodResources(pod *corev1.Pod) {
	cpus, bytes := int64(0), int64(0)
	for role, c := range podutil.Containers(&pod.Spec) {
		if e.chance(30) {
			c.Resources = corev1.ResourceRequirements{}
		}
		if role != podutil.RoleEphemeral {
			cpus += c.Resources.Requests.Cpu().Value()
			bytes += c.Resources.Requests.Memory().Value()
		}
	}
	list := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(max(1, cpus+int64(e.rand.IntN(3))), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(max(1<<28, bytes+int64(e.rand.IntN(2))<<28), resource.BinarySI),
	}
	for role, c := range podutil.Containers(&pod.Spec) {
		for _, name := range []corev1.ResourceName{"hugepages-2Mi", "hugepages-1Gi"} {
			if q, ok := c.Resources.Requests[name]; ok && role != podutil.RoleEphemeral {
				sum := list[name]
				sum.Add(q)
				list[name] = sum
			}
		}
	}
	pod.Spec.Resources = &corev1.ResourceRequirements{Requests: list, Limits: list.DeepCopy()}
}

func describePod(pod *corev1.Pod) string {
	text := pod.Name
	if r := pod.Spec.Resources; r != nil {
		text += " whole " + describeList(r.Requests)
	}
	for role, c := range podutil.Containers(&pod.Spec) {
		text += fmt.Sprintf(", %s %s %s/%s", role, c.Name, describeList(c.Resources.Requests), c.Resources.Limits.Cpu())
	}
	return text
}

func describeList(list corev1.ResourceList) string {
	var all []string
	for _, name := range sortedKeys(list) {
		q := list[name]
		all = append(all, string(name)+"="+q.String())
	}
	return strings.Join(all, " ")
}
