package agent_test

import (
	"flag"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

var densePods = flag.Int("pods", 1000, "`number` of pods of TestDensity on the full node")

// cost is what one step on a node full of pods took, per pod: calls to the runtime, and allocated objects.
type cost struct{ calls, objects float64 }

// dense returns the costs of a node with n pods, by step. The fake runtime's own objects are among them.
func dense(t *testing.T, n int) map[string]cost {
	costs := map[string]cost{}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.quiet = true
		w.allocatable["pods"], w.allocatable["cpu"] = resource.MustParse("10k"), resource.MustParse("10k")
		w.begin()
		all := make([]*corev1.Pod, n)
		for i := range all {
			all[i] = apiPod(fmt.Sprintf("pod-%04d", i), withEmptyDir)
		}
		step := func(name string, do func(), takes time.Duration, running int) {
			w.runtime.ResetCalls()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			do()
			w.sleep(takes)
			runtime.ReadMemStats(&after)
			c := cost{
				calls:   float64(len(w.runtime.Calls())) / float64(n),
				objects: float64(after.Mallocs-before.Mallocs) / float64(n),
			}
			if got := len(w.running()); got != running {
				t.Errorf("%s: got %d containers that run, want %d", name, got, running)
			}
			t.Logf("%d pods, %s: per pod %.2f calls to the runtime, %.0f objects", n, name, c.calls, c.objects)
			costs[name] = c
		}
		step("start", func() { w.run(all...) }, time.Minute, n)
		step("ten minutes at rest", func() {}, 10*time.Minute, n)
		step("restart of the agent", w.restart, time.Minute, n)
		step("end", func() {
			for _, pod := range all {
				w.delete(pod, time.Second)
			}
		}, time.Minute, 0)
		w.checkNothingLeft()
	})
	return costs
}

// TestDensity checks that a pod costs about the same on a full node as on one with few pods, when it starts, at rest,
// when the agent restarts, and when it ends. It does not run beside other tests: it counts the objects of the process.
func TestDensity(t *testing.T) {
	few, many := dense(t, *densePods/8), dense(t, *densePods)
	for step, c := range many {
		// What costs each pod a look at all others would cost eight times as much. On a busy machine, more changes of the
		// few pods are handled at once.
		if most := 2*few[step].objects + 200; c.objects > most {
			t.Errorf("%s: got %.0f objects a pod, want at most %.0f", step, c.objects, most)
		}
		if most := few[step].calls + 1; c.calls > most {
			t.Errorf("%s: got %.2f calls a pod, want at most %.2f", step, c.calls, most)
		}
	}
}
