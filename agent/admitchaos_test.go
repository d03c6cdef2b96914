package agent_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// crowd is a node on which pods of all priorities compete for CPU, from a seed.
type crowd struct {
	*world
	*rand.Rand
	made int
	// wanted are the pods of the sources, in the order of their creation. ran has those of which a container has run.
	// highest is the highest priority of all.
	wanted  []*corev1.Pod
	ran     map[string]bool
	highest int32
}

// TestAdmissionChaos checks admission and preemption while pods of all priorities come and go, the agent is killed, and
// statuses are lost because the API server lags behind:
//
//   - NeverTooMuch: the running containers never request more CPU than is allocatable.
//   - RunningStays: a pod that has run is not refused later; it may only be preempted.
//   - OnlyLower: a critical pod is never preempted, except for one of a higher priority.
//   - FreePlaceIsUsed: in the end each wanted pod that was not refused or preempted runs, and a refused static pod does
//     not fit.
func TestAdmissionChaos(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.runtime.Script("app", fake.Script{TermTakes: 2 * time.Second})
				c := &crowd{world: w, Rand: rand.New(rand.NewPCG(seed, 1)), ran: map[string]bool{}}
				for range 80 {
					c.act()
					w.sleep(time.Duration(c.IntN(4000)) * time.Millisecond)
					c.check()
				}
				w.amnesia = false
				w.sleep(5 * time.Minute)
				c.check()
				c.checkSettled()
			})
		})
	}
}

// act does one thing that a cluster or a node does.
func (c *crowd) act() {
	switch n := c.IntN(10); {
	case n < 5:
		c.add()
	case n < 8 && len(c.wanted) > 0:
		i := c.IntN(len(c.wanted))
		pod := c.wanted[i]
		c.wanted = append(c.wanted[:i:i], c.wanted[i+1:]...)
		if podutil.IsStatic(pod) {
			c.remove(pod.UID)
		} else {
			c.delete(pod, time.Duration(c.IntN(5))*time.Second)
		}
	case n == 8:
		c.amnesia = c.IntN(2) == 0
		c.restart()
	}
}

// add creates a pod of a random kind and size.
func (c *crowd) add() {
	c.made++
	name := "p" + strconv.Itoa(c.made)
	cpu := withCPU(strconv.Itoa(100+c.IntN(2500)) + "m")
	var pod *corev1.Pod
	switch c.IntN(4) {
	case 0:
		pod = staticPod(name, "uid-"+name, cpu)
	case 1:
		pod = apiPod(name, cpu, withPriority(systemCritical+int32(c.IntN(3))))
	default:
		pod = apiPod(name, cpu, withPriority(int32(c.IntN(1000))))
	}
	if p := pod.Spec.Priority; p != nil {
		c.highest = max(c.highest, *p)
	}
	c.wanted = append(c.wanted, pod)
	c.run(pod)
}

// check checks what holds at all times.
func (c *crowd) check() {
	c.t.Helper()
	var used int64
	for _, ctr := range c.runtime.Containers() {
		pod := c.set.Pods[types.UID(ctr.Labels[podutil.LabelPodUID])]
		if pod != nil && ctr.State == running {
			c.ran[pod.Name] = true
			used += milliCPU(pod)
		}
	}
	if allocatable := c.allocatable.Cpu().MilliValue(); used > allocatable {
		c.t.Errorf("NeverTooMuch: the running containers request: got %dm, want at most %dm: %v",
			used, allocatable, c.running())
	}
	preempted := strings.Join(c.eventsWith("Preempting"), "\n") + "\n"
	for _, pod := range c.wanted {
		was := strings.Contains(preempted, "default/"+pod.Name+" ")
		if was && podutil.IsCritical(pod) && (podutil.IsStatic(pod) || *pod.Spec.Priority >= c.highest) {
			c.t.Errorf("OnlyLower: got %s preempted, want it kept", pod.Name)
		}
		if st := c.status(pod); c.ran[pod.Name] && !was && st.Phase == corev1.PodFailed {
			c.t.Errorf("RunningStays: got %s refused after it has run: %s: %s; want it kept",
				pod.Name, st.Reason, st.Message)
		}
	}
}

// checkSettled checks what holds when nothing happens any more.
func (c *crowd) checkSettled() {
	c.t.Helper()
	free := c.allocatable.Cpu().MilliValue()
	runs := map[string]bool{}
	for _, ctr := range c.runtime.Containers() {
		if pod := c.set.Pods[types.UID(ctr.Labels[podutil.LabelPodUID])]; pod != nil && ctr.State == running {
			runs[pod.Name] = true
			free -= milliCPU(pod)
		}
	}
	for _, pod := range c.wanted {
		switch st := c.status(pod); {
		case runs[pod.Name]:
		case !podutil.IsStatic(pod) && st.Phase != corev1.PodFailed:
			c.t.Errorf("FreePlaceIsUsed: got %s with phase %q, want it running or refused", pod.Name, st.Phase)
		case podutil.IsStatic(pod) && milliCPU(pod) <= free:
			c.t.Errorf("FreePlaceIsUsed: got static pod %s of %dm refused beside %dm of free CPU, want it admitted",
				pod.Name, milliCPU(pod), free)
		}
	}
}

func milliCPU(pod *corev1.Pod) int64 {
	return pod.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
}
