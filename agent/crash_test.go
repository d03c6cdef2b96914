package agent_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/cri/fake"
)

// deaths are the ways in which the agent dies of a call: the call never got to its work, or did it and nobody was
// left to hear of it; and what the agent has published by then is known to its next life or not.
var deaths = []struct {
	name          string
	lose, amnesia bool
}{{name: "before"}, {name: "after", lose: true}, {name: "after, with nothing published", lose: true, amnesia: true}}

// atEachCall runs a test once for each call that the agent may die of, in each way. The test calls die, which waits
// for the agent's death. How many calls there are, and in which order, depends on how busy the machine is: the agent
// looks at the runtime more or less often. One of verbs must be among those that it died of.
func atEachCall(t *testing.T, verbs []string, test func(t *testing.T, w *world, die func())) {
	for _, d := range deaths {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			died := true
			diedOf := map[string]bool{}
			for n := 0; died && !t.Failed(); n++ {
				t.Run(fmt.Sprint("call ", n), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						w := newWorld(t)
						w.amnesia = d.amnesia
						fault := &fake.Fault{Times: 1, Hang: true, Lose: d.lose}
						test(t, w, func() { died = w.killAt(n, fault) })
						for _, verb := range fault.Verbs() {
							diedOf[verb] = true
						}
					})
				})
			}
			if !slices.ContainsFunc(verbs, func(verb string) bool { return diedOf[verb] }) {
				t.Errorf("the agent died of calls of %v, want one of %v among them", diedOf, verbs)
			}
		})
	}
}

// killAt lets n calls pass from now on, and ends the agent when the next has met its fault. It tells whether there
// was one.
func (w *world) killAt(n int, fault *fake.Fault) (met bool) {
	if n > 0 {
		w.runtime.Inject(&fake.Fault{Times: n}) // takes the calls before, and does nothing to them
	}
	w.runtime.Inject(fault)
	for range 60 {
		if w.sleep(time.Second); fault.Hits() > 0 {
			break
		}
	}
	w.end()
	w.runtime.Release(fault)
	return fault.Hits() > 0
}

// fullPod has what makes a start long: an init container, a sidecar, an app container, a volume.
func fullPod() *corev1.Pod {
	return apiPod("web", withInit("setup"), withSidecar("proxy"), withEmptyDir)
}

// TestKilledWhileStarting: wherever the agent dies, its next life finishes the start, and nothing is made twice or
// lost.
func TestKilledWhileStarting(t *testing.T) {
	atEachCall(t, []string{"RunPodSandbox", "CreateContainer", "StartContainer"}, func(t *testing.T, w *world, die func()) {
		w.runtime.Script("setup", fake.Script{RunsFor: time.Second})
		w.begin()
		pod := fullPod()
		w.run(pod)
		die()
		w.begin()
		w.sleep(2 * time.Minute)
		w.checkRunning("web/proxy#0", "web/app#0")
		w.checkOnce()
		if st := w.status(pod); st.Phase != corev1.PodRunning || !ready(st) || shown(st, "app").RestartCount != 0 {
			t.Errorf("status: %+v", st)
		}
		w.delete(pod, 5*time.Second)
		w.sleep(time.Minute)
		w.checkNothingLeft()
	})
}

// checkOnce: there is one sandbox, the first, and one instance of each container, the first.
func (w *world) checkOnce() {
	w.t.Helper()
	for i, s := range w.runtime.Sandboxes() {
		if i > 0 || s.Metadata.Attempt != 0 || s.State != runtimeapi.PodSandboxState_SANDBOX_READY {
			w.t.Errorf("sandbox %d is attempt %d, %s", i, s.Metadata.Attempt, s.State)
		}
	}
	seen := map[string]bool{}
	for _, c := range w.runtime.Containers() {
		if seen[c.Metadata.Name] || c.Metadata.Attempt != 0 {
			w.t.Errorf("container %s has an instance of attempt %d, %s", c.Metadata.Name, c.Metadata.Attempt, c.State)
		}
		seen[c.Metadata.Name] = true
	}
}

// TestKilledWhileStopping: wherever the agent dies, its next life finishes the end, in the order that the pod asks for.
func TestKilledWhileStopping(t *testing.T) {
	atEachCall(t, []string{"StopContainer", "StopPodSandbox"}, func(t *testing.T, w *world, die func()) {
		w.runtime.Script("setup", fake.Script{RunsFor: time.Second})
		w.runtime.Script("app", fake.Script{TermTakes: 3 * time.Second})
		w.begin()
		pod := fullPod()
		w.run(pod)
		w.sleep(time.Minute)
		w.checkRunning("web/proxy#0", "web/app#0")
		w.delete(pod, 20*time.Second)
		die()
		w.begin()
		w.sleep(2 * time.Minute)
		w.checkNothingLeft()
		if len(w.set.Pods) != 0 {
			t.Error("the pod was never reported as gone")
		}
	})
}

// TestKilledWhileErasing: a pod whose manifest has gone goes without a trace wherever the agent dies, though nobody
// can tell the next life anything about it.
func TestKilledWhileErasing(t *testing.T) {
	atEachCall(t, []string{"StopPodSandbox", "RemovePodSandbox"}, func(t *testing.T, w *world, die func()) {
		w.begin()
		pod := staticPod("web", "0123", withEmptyDir)
		w.run(pod)
		w.sleep(time.Second)
		w.remove(pod.UID)
		die()
		w.begin()
		w.sleep(5 * time.Minute)
		w.checkNothingLeft()
	})
}

// TestKilledWithin: the agent dies while the runtime works on a sandbox or container and has reserved its name already.
func TestKilledWithin(t *testing.T) {
	for _, object := range []string{"default/web#0", "setup#0", "proxy#0", "app#0"} {
		t.Run(object, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.runtime.Script("setup", fake.Script{RunsFor: time.Second})
				w.runtime.Inject(&fake.Fault{Object: object, Times: 1, Hang: true, Inside: true})
				w.run(fullPod())
				w.sleep(10 * time.Second)
				w.checkRunning(map[string][]string{"app#0": {"web/proxy#0"}}[object]...)
				w.restart()
				w.sleep(time.Minute)
				w.checkRunning("web/proxy#0", "web/app#0")
				w.checkOnce()
			})
		})
	}
}

// TestLostAnswers: the runtime does the work and the answer gets lost; nothing is made twice.
func TestLostAnswers(t *testing.T) {
	for _, verb := range []string{"RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "StopPodSandbox",
		"RemovePodSandbox", "PodSandboxStatus", "ContainerStatus", "ListContainers", "ListPodSandbox", "ImageStatus"} {
		t.Run(verb, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.sleep(time.Second)
				lost := w.runtime.Inject(&fake.Fault{Verb: verb, Times: 1, Lose: true})
				pod := apiPod("web")
				w.run(pod)
				w.sleep(10 * time.Second)
				w.checkRunning("web/app#0")
				w.checkOnce()
				w.delete(pod, 5*time.Second)
				w.sleep(10 * time.Second)
				w.checkNothingLeft()
				if lost.Hits() != 1 {
					t.Errorf("%d answers were lost", lost.Hits())
				}
				for _, made := range []string{"RunPodSandbox", "CreateContainer", "StartContainer"} {
					if n := w.runtime.Verbs()[made]; n != 1 {
						t.Errorf("%s was called %d times", made, n)
					}
				}
			})
		})
	}
}

// TestHalfMadeSandbox: what a runtime leaves that was killed while it made a sandbox is cleared away, and the pod runs.
func TestHalfMadeSandbox(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late=%v", late), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				pod := apiPod("web")
				w.runtime.HalfMade(&runtimeapi.PodSandboxConfig{
					Metadata: &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID)},
					Labels: map[string]string{"io.kubernetes.pod.name": pod.Name, "io.kubernetes.pod.namespace": pod.Namespace,
						"io.kubernetes.pod.uid": string(pod.UID)},
				}, late)
				w.run(pod)
				w.sleep(time.Minute)
				w.checkRunning("web/app#0")
				if all := w.runtime.Sandboxes(); len(all) != 1 {
					t.Errorf("there are %d sandboxes", len(all))
				}
			})
		})
	}
}

// TestRestartOfTheAgent: a new life changes nothing about pods that run.
func TestRestartOfTheAgent(t *testing.T) {
	for _, amnesia := range []bool{false, true} {
		t.Run(fmt.Sprintf("amnesia=%v", amnesia), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.amnesia = amnesia
				w.runtime.Script("setup", fake.Script{RunsFor: time.Second})
				pod := fullPod()
				w.run(pod)
				w.sleep(time.Minute)
				w.run(staticPod("kept", "0123"))
				w.sleep(time.Minute)
				before := w.status(pod)
				w.runtime.ResetCalls()
				w.restart()
				w.sleep(anHour)
				w.checkRunning("web/proxy#0", "web/app#0", "kept/app#0")
				if acts := w.acts(); len(acts) != 0 {
					t.Errorf("the new life did %q", acts)
				}
				after := w.status(pod)
				if !ready(after) || !amnesia && !after.StartTime.Equal(before.StartTime) || !slices.Equal(after.PodIPs, before.PodIPs) {
					t.Errorf("status was %+v\nand is %+v", before, after)
				}
			})
		})
	}
}
