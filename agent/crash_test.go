package agent_test

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/test/cri/fake"
)

// deaths are the ways in which the agent is killed during a call: before the runtime acts, or after it has acted but
// before it has answered; and the next run of the agent sees the published statuses or does not.
var deaths = []struct {
	name          string
	lose, amnesia bool
}{{name: "before"}, {name: "after", lose: true}, {name: "after, with nothing published", lose: true, amnesia: true}}

// atEachCall runs a test once for each call during which the agent can be killed, in each way. The test calls die with
// the change that makes the agent work; die waits until the agent has ended. The number and order of the calls depends
// on the load of the machine: the agent reads the state of the runtime more or less often. A sweep over all calls can
// therefore step over one, so that each call of verbs has a sweep of its own; there must be at least one call of each.
func atEachCall(t *testing.T, verbs []string, test func(t *testing.T, w *world, die func(change func()))) {
	const anyVerb = ""
	for _, d := range deaths {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			for _, verb := range append([]string{anyVerb}, verbs...) {
				n := 0
				for died := true; died && !t.Failed(); {
					t.Run(fmt.Sprintf("%s call %d", verb, n), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							w := newWorld(t)
							w.amnesia = d.amnesia
							fault := &fake.Fault{Verb: verb, Times: 1, Hang: true, Lose: d.lose}
							test(t, w, func(change func()) { died = w.killAt(n, fault, change) })
						})
					})
					if died {
						n++
					}
				}
				if n == 0 {
					t.Errorf("calls of %q during which the agent was killed: got 0, want at least 1", verb)
				}
			}
		})
	}
}

// killAt lets n calls of the fault's verb that a change leads to pass, and ends the agent when the next one has met its
// fault. It reports whether there was one. The faults are there before the change, so that the agent is not ahead of
// them.
func (w *world) killAt(n int, fault *fake.Fault, change func()) (met bool) {
	if n > 0 {
		w.runtime.Inject(&fake.Fault{Verb: fault.Verb, Times: n}) // lets the calls before pass
	}
	w.runtime.Inject(fault)
	change()
	for range 60 {
		if w.sleep(time.Second); fault.Hits() > 0 {
			break
		}
	}
	w.end()
	w.runtime.Release(fault)
	return fault.Hits() > 0
}

// fullPod returns a pod whose start has many steps: an init container, a sidecar, an app container, a volume.
func fullPod() *corev1.Pod {
	return apiPod("web", withInit("setup"), withSidecar("proxy"), withEmptyDir)
}

// TestKilledWhileStarting checks that the next run of the agent completes a start after a kill at any call, and that
// nothing is created twice or lost.
func TestKilledWhileStarting(t *testing.T) {
	atEachCall(t, []string{"RunPodSandbox", "CreateContainer", "StartContainer"},
		func(t *testing.T, w *world, die func(change func())) {
			w.runtime.Script("setup", fake.Script{RunsFor: time.Second})
			w.begin()
			pod := fullPod()
			die(func() { w.run(pod) })
			w.begin()
			w.sleep(2 * time.Minute)
			w.checkRunning("web/proxy#0", "web/app#0")
			w.checkOnce()
			w.checkLinked()
			if st := w.status(pod); st.Phase != corev1.PodRunning || !ready(st) || containerStatus(st, "app").RestartCount != 0 {
				t.Errorf("status: got %+v, want a ready pod without a restart", st)
			}
			w.delete(pod, 5*time.Second)
			w.sleep(time.Minute)
			w.checkNothingLeft()
		})
}

// checkLinked checks that log collectors find the log of each container.
func (w *world) checkLinked() {
	w.t.Helper()
	for _, c := range w.runtime.Containers() {
		link := fmt.Sprintf("web_default_%s-%s.log", c.Metadata.Name, c.Id)
		want := w.path(fmt.Sprintf("logs/default_web_uid-web/%s/0.log", c.Metadata.Name))
		if to, err := os.Readlink(w.path("links/" + link)); to != want {
			w.t.Errorf("link to the log of %s: got %q, %v, want %q", c.Metadata.Name, to, err, want)
		}
	}
}

// checkOnce checks that there is one sandbox and one instance of each container, all with attempt 0.
func (w *world) checkOnce() {
	w.t.Helper()
	for i, s := range w.runtime.Sandboxes() {
		if i > 0 || s.Metadata.Attempt != 0 || s.State != runtimeapi.PodSandboxState_SANDBOX_READY {
			w.t.Errorf("sandbox %d: got attempt %d, %s, want attempt 0 alone, ready", i, s.Metadata.Attempt, s.State)
		}
	}
	seen := map[string]bool{}
	for _, c := range w.runtime.Containers() {
		if seen[c.Metadata.Name] || c.Metadata.Attempt != 0 {
			w.t.Errorf("container %s: got attempt %d, %s, want attempt 0 alone", c.Metadata.Name, c.Metadata.Attempt, c.State)
		}
		seen[c.Metadata.Name] = true
	}
}

// TestKilledWhileStopping checks that the next run of the agent completes a stop after a kill at any call, in the order
// that the pod's spec requires.
func TestKilledWhileStopping(t *testing.T) {
	atEachCall(t, []string{"StopContainer", "StopPodSandbox"}, func(t *testing.T, w *world, die func(change func())) {
		w.runtime.Script("setup", fake.Script{RunsFor: time.Second})
		w.runtime.Script("app", fake.Script{TermTakes: 3 * time.Second})
		w.begin()
		pod := fullPod()
		w.run(pod)
		w.sleep(time.Minute)
		w.checkRunning("web/proxy#0", "web/app#0")
		die(func() { w.delete(pod, 20*time.Second) })
		w.begin()
		w.sleep(2 * time.Minute)
		w.checkNothingLeft()
		if len(w.set.Pods) != 0 {
			t.Error("got no report that the pod is gone, want one")
		}
	})
}

// TestKilledWhileRemovingOrphan checks that nothing is left of a pod whose manifest was removed after a kill at any
// call, although no source knows the pod in the next run of the agent.
func TestKilledWhileRemovingOrphan(t *testing.T) {
	atEachCall(t, []string{"StopPodSandbox", "RemovePodSandbox"}, func(t *testing.T, w *world, die func(change func())) {
		w.begin()
		pod := staticPod("web", "0123", withEmptyDir)
		w.run(pod)
		w.sleep(time.Second)
		die(func() { w.remove(pod.UID) })
		w.begin()
		w.sleep(5 * time.Minute)
		w.checkNothingLeft()
	})
}

// TestKilledWithin kills the agent while the runtime creates a sandbox or container and has already reserved its name.
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

// TestLostAnswers checks that nothing is created twice if the runtime has done its work but the answer is lost. Lists
// are asked for after a restart of the agent.
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
				w.restart()
				w.sleep(10 * time.Second)
				w.checkRunning("web/app#0")
				w.checkOnce()
				w.delete(pod, 5*time.Second)
				w.sleep(10 * time.Second)
				w.checkNothingLeft()
				if lost.Hits() != 1 {
					t.Errorf("lost answers: got %d, want 1", lost.Hits())
				}
				for _, made := range []string{"RunPodSandbox", "CreateContainer", "StartContainer"} {
					if n := w.runtime.Verbs()[made]; n != 1 {
						t.Errorf("%s: got %d calls, want 1", made, n)
					}
				}
			})
		})
	}
}

// TestHalfMadeSandbox checks that the sandbox of a runtime that was killed while it created it is removed, and that the
// pod runs.
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
					t.Errorf("there: got %d sandboxes, want 1", len(all))
				}
			})
		})
	}
}

// TestRestartOfTheAgent checks that a restart of the agent does not change running pods.
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
					t.Errorf("calls after the restart: got %q, want none", acts)
				}
				after := w.status(pod)
				if !ready(after) || !amnesia && !after.StartTime.Equal(before.StartTime) ||
					!slices.Equal(after.PodIPs, before.PodIPs) {
					t.Errorf("status: got %+v\nwant %+v", after, before)
				}
			})
		})
	}
}
