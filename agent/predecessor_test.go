package agent_test

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/pods"
	"github.com/nodelet/nodelet/test/cri/fake"
)

var webName = types.NamespacedName{Namespace: "default", Name: "web"}

// away lets a pod run that takes ten seconds to end, and ends the agent. What the sources say by then is next alone,
// and perhaps nothing is heard of the API server.
func (w *world) away(old, next *corev1.Pod, apiAway bool) {
	w.runtime.Script("app", fake.Script{TermTakes: 10 * time.Second})
	w.run(old)
	w.sleep(time.Second)
	w.end()
	w.change(func(set *pods.Set) {
		set.Pods = map[types.UID]*corev1.Pod{}
		if next != nil {
			set.Pods[next.UID] = next
		}
		if apiAway {
			set.Synced, set.Waiting = false, []pods.Source{pods.SourceAPI}
		}
	})
}

// sandboxOf checks that there is one sandbox, that of the pod.
func (w *world) sandboxOf(pod *corev1.Pod) {
	w.t.Helper()
	if all := w.runtime.Sandboxes(); len(all) != 1 || all[0].Metadata.Uid != string(pod.UID) {
		w.t.Errorf("the sandboxes: got %v, want one of pod %s", all, pod.UID)
	}
}

// TestStaticPodChangedWhileAway checks that a static pod waits until an earlier one of the same name is gone, also if
// an earlier run of the agent has started that, and with or without an answer of the API server. So does the mirror
// pod.
func TestStaticPodChangedWhileAway(t *testing.T) {
	for what, apiAway := range map[string]bool{"all sources have spoken": false, "without the API server": true} {
		t.Run(what, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				old, next := staticPod("web", "0123"), staticPod("web", "4567")
				w.away(old, next, apiAway)
				w.begin()
				w.sleep(9 * time.Second)
				w.sandboxOf(old)
				w.checkWaits(next, "its name", "has to end first")
				if !w.agent.Ending(webName, next.UID) {
					t.Error("Ending while the old pod still ends: got false, want true")
				}
				w.sleep(5 * time.Second)
				w.sandboxOf(next)
				w.checkRunning("web/app#0")
				if w.agent.Ending(webName, next.UID) {
					t.Error("Ending after the old pod has ended: got true, want false")
				}
			})
		})
	}
}

// TestStaticPodRemovedWhileAway checks that as long as not all sources have spoken the pod runs on; in no moment does
// it look as if it had ended before it has.
func TestStaticPodRemovedWhileAway(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		ending := func(want bool) {
			t.Helper()
			if w.agent.Ending(webName, "") != want {
				t.Errorf("Ending: got %v, want %v", !want, want)
			}
		}
		w.away(staticPod("web", "0123"), nil, true)
		hung := w.runtime.Inject(&fake.Fault{Verb: "ListPodSandbox", Hang: true})
		w.begin()
		ending(true)
		w.runtime.Release(hung)
		w.sleep(time.Minute)
		w.checkRunning("web/app#0")
		ending(true)
		w.change(func(set *pods.Set) { set.Synced, set.Waiting = true, nil })
		ending(true)
		w.sleep(9 * time.Second)
		ending(true)
		w.sleep(5 * time.Second)
		ending(false)
		w.checkNothingLeft()
	})
}

// TestStaticPodWaitsForTheFirstList checks that a static pod waits until the runtime has listed its pods, because an
// earlier one of its name may run. The list is tried again soon.
func TestStaticPodWaitsForTheFirstList(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		old, next := staticPod("web", "0123"), staticPod("web", "4567")
		w.away(old, next, true)
		w.runtime.Inject(&fake.Fault{Verb: "ListPodSandbox", Times: 5, Err: errors.New("not now")})
		w.begin()
		w.sandboxOf(old)
		w.checkWaits(next, "its name", "has not listed its pods yet")
		w.sleep(20 * time.Second)
		w.sandboxOf(next)
		w.checkRunning("web/app#0")
	})
}

// TestNameOfAnAPIPod checks that a pod of the API server is not ended because a static pod has its name, before the
// API server has spoken.
func TestNameOfAnAPIPod(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.away(apiPod("web"), staticPod("web", "4567"), true)
		w.begin()
		w.sleep(anHour)
		w.checkRunning("web/app#0", "web/app#0")
	})
}

// TestStaticPodBesideAnAPIPod checks that a static pod runs beside a pod of the API server that has its name, as with
// the kubelet: only its mirror pod has to wait.
func TestStaticPodBesideAnAPIPod(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(apiPod("web"))
		w.sleep(time.Second)
		w.run(staticPod("web", "4567"))
		w.sleep(time.Second)
		w.checkRunning("web/app#0", "web/app#0")
	})
}
