package agent_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// chaos does harm to a node at random, from a seed.
type chaos struct {
	*world
	*rand.Rand
	pods   []*corev1.Pod
	faults []*fake.Fault
}

// TestChaos checks that whatever happens to the runtime and the agent, no container ever runs twice at a time; when
// it stops, what is wanted runs and nothing else is there.
func TestChaos(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				c := &chaos{world: w, Rand: rand.New(rand.NewPCG(seed, 0))}
				w.runtime.Script("app", fake.Script{TermTakes: time.Second})
				w.runtime.Script("setup", fake.Script{RunsFor: 2 * time.Second})
				for i := range 3 {
					c.pods = append(c.pods, apiPod(fmt.Sprint("api-", i), withInit("setup"), withEmptyDir),
						staticPod(fmt.Sprint("static-", i), fmt.Sprint("uid-static-", i), withSidecar("proxy")))
				}
				for range 60 {
					c.harm()
					w.sleep(time.Duration(c.IntN(3000)) * time.Millisecond)
					c.checkNoTwins()
				}
				c.stopFaults()
				w.sleep(20 * time.Minute)
				c.checkWanted()
				for _, pod := range c.pods {
					c.takeAway(pod)
				}
				w.sleep(time.Minute)
				w.checkNothingLeft()
			})
		})
	}
}

// harm does one thing, harmful or not.
func (c *chaos) harm() {
	pod := c.pods[c.IntN(len(c.pods))]
	all := c.runtime.Containers()
	switch c.IntN(12) {
	case 0, 1, 2, 3:
		if !c.ends(pod) {
			c.run(pod)
		}
	case 4, 5:
		c.takeAway(pod)
	case 6:
		c.restart()
	case 7:
		c.runtime.Crash(c.IntN(3) == 0)
		c.sleep(time.Duration(c.IntN(5000)) * time.Millisecond)
		if err := c.runtime.Restart(); err != nil {
			c.t.Fatal(err)
		}
	case 8:
		c.runtime.CutStreams()
	case 9:
		if len(all) > 0 {
			c.runtime.ExitContainer(all[c.IntN(len(all))].Id, int32(c.IntN(2)), "")
		}
	default:
		c.inject()
	}
}

// ends reports whether a pod has been deleted and is still there: then it does not come back.
func (c *chaos) ends(pod *corev1.Pod) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	have := c.set.Pods[pod.UID]
	return have != nil && have.DeletionTimestamp != nil
}

// takeAway ends a pod as its source does.
func (c *chaos) takeAway(pod *corev1.Pod) {
	if podutil.IsStatic(pod) {
		c.remove(pod.UID)
	} else {
		c.delete(pod, time.Duration(c.IntN(5))*time.Second)
	}
}

// inject makes some calls fail, hang or lose their answer.
func (c *chaos) inject() {
	verbs := []string{"", "RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "StopPodSandbox",
		"ContainerStatus"}
	f := &fake.Fault{Verb: verbs[c.IntN(len(verbs))], Times: 1 + c.IntN(3)}
	switch c.IntN(4) {
	case 0:
		f.Lose = true
	case 1:
		f.Err = fmt.Errorf("out of order")
	case 2:
		f.Delay = 10 * time.Second
	case 3:
		f.Hang, f.Inside = true, c.IntN(2) == 0
	}
	c.faults = append(c.faults, c.runtime.Inject(f))
}

// stopFaults ends all faults.
func (c *chaos) stopFaults() {
	for _, f := range c.faults {
		c.runtime.Release(f)
	}
}

// checkNoTwins: of each container at most one instance runs.
func (c *chaos) checkNoTwins() {
	c.t.Helper()
	seen := map[string]bool{}
	for _, ctr := range c.runtime.Containers() {
		key := ctr.Labels["io.kubernetes.pod.uid"] + "/" + ctr.Metadata.Name
		if ctr.State == running && seen[key] {
			c.t.Errorf("got two running instances of %s, want one", key)
		}
		seen[key] = seen[key] || ctr.State == running
	}
}

// checkWanted: each pod of the set has one ready sandbox and its containers run; nothing else is ready or runs.
func (c *chaos) checkWanted() {
	c.t.Helper()
	c.checkNoTwins()
	var want, got []string
	for uid, pod := range c.set.Pods {
		want = append(want, string(uid)+" ready", string(uid)+"/app")
		if len(pod.Spec.InitContainers) > 0 && pod.Spec.InitContainers[0].Name == "proxy" {
			want = append(want, string(uid)+"/proxy")
		}
	}
	for _, s := range c.runtime.Sandboxes() {
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			got = append(got, s.Metadata.Uid+" ready")
		}
	}
	for _, ctr := range c.runtime.Containers() {
		if ctr.State == running {
			got = append(got, ctr.Labels["io.kubernetes.pod.uid"]+"/"+ctr.Metadata.Name)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		c.t.Errorf("got %q,\nwant %q", got, want)
	}
}
