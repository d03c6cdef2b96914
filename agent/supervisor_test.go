package agent_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/placement"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/cri"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/pods"
	"github.com/nodelet/nodelet/test/cri/fake"
	"github.com/nodelet/nodelet/test/placementtest"
)

// strand leaves a running pod that no source knows in the next run of the agent.
func (w *world) strand(name string) {
	pod := apiPod(name, withEmptyDir)
	w.run(pod)
	w.sleep(time.Second)
	w.end()
	w.remove(pod.UID)
}

// TestOrphansWaitForEverySource checks that pods that no source knows are ended only after every source has synced.
func TestOrphansWaitForEverySource(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.strand("old")
		w.change(func(set *pods.Set) { set.Synced, set.Waiting = false, []pods.Source{pods.SourceAPI} })
		w.begin()
		w.run(staticPod("kept", "0123"))
		w.sleep(anHour)
		w.checkRunning("old/app#0", "kept/app#0")
		w.change(func(set *pods.Set) { set.Synced, set.Waiting = true, nil })
		w.sleep(0)
		w.checkRunning("kept/app#0")
		if all := w.runtime.Sandboxes(); len(all) != 1 {
			t.Errorf("got %d sandboxes left, want 1", len(all))
		}
	})
}

// TestOrphansWaitForUnreadManifests checks that no pod is an orphan while a manifest has been unreadable since the
// start, but for those that are known to come from the API server.
func TestOrphansWaitForUnreadManifests(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		old := staticPod("old", "0123")
		w.run(old)
		w.strand("deleted")
		w.remove(old.UID)
		w.change(func(set *pods.Set) { set.Problems = []pods.Problem{{Source: pods.SourceFile, Unknown: true}} })
		w.begin()
		w.sleep(anHour)
		w.checkRunning("old/app#0")
		w.change(func(set *pods.Set) { set.Problems = nil })
		w.sleep(2 * time.Minute)
		w.checkNothingLeft()
	})
}

// TestTracesOnDisk checks that the files of a pod are removed if nothing else is left of it.
func TestTracesOnDisk(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		for _, dir := range []string{"pods/gone/volumes/kubernetes.io~empty-dir/data", "logs/default_web_gone/app"} {
			if err := os.MkdirAll(w.path(dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		w.sleep(2 * time.Minute)
		w.checkNothingLeft()
	})
}

// TestUnknownPodWithBadLabels checks that no labels in the runtime make the agent remove a file outside the log
// directory.
func TestUnknownPodWithBadLabels(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		precious := w.path("precious_odd")
		if err := os.MkdirAll(precious, 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := w.agent.runtime.RunPodSandbox(t.Context(), &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "odd", Namespace: "default", Uid: "odd"},
			Labels: map[string]string{podutil.LabelPodUID: "odd", podutil.LabelPodNamespace: "default",
				podutil.LabelPodName: "x/../../precious"},
		}, "")
		if err != nil {
			t.Fatal(err)
		}
		w.sleep(2 * time.Minute)
		w.checkNothingLeft()
		if _, err := os.Stat(precious); err != nil {
			t.Error(err)
		}
	})
}

// TestStaticPodReplaced checks that a static pod waits until an earlier one of the same name is gone.
func TestStaticPodReplaced(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{TermTakes: 10 * time.Second})
		old := staticPod("web", "0123")
		w.run(old)
		w.sleep(time.Second)
		next := staticPod("web", "4567", withInit("setup"))
		w.runtime.Script("setup", fake.Script{RunsFor: time.Second})
		w.change(func(set *pods.Set) { set.Pods = map[types.UID]*corev1.Pod{next.UID: next} })
		w.sleep(9 * time.Second)
		if all := w.runtime.Sandboxes(); len(all) != 1 || all[0].Metadata.Uid != "0123" {
			t.Errorf("while the old pod ends there: got %d sandboxes, want 1", len(all))
		}
		w.checkWaits(next, "its name", "has to end first")
		w.sleep(5 * time.Second)
		w.checkRunning("web/app#0")
		if all := w.runtime.Sandboxes(); len(all) != 1 || all[0].Metadata.Uid != "4567" {
			t.Errorf("in the end there: got %d sandboxes, want 1", len(all))
		}
	})
}

// TestStaticPodReplacedBeforeRemoval checks that a static pod does not wait until the runtime has removed what is left
// of an earlier one of the same name, as with the kubelet. Nor does its mirror pod.
func TestStaticPodReplacedBeforeRemoval(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		failing := w.runtime.Inject(&fake.Fault{Verb: "RemovePodSandbox", Err: errors.New("device or resource busy")})
		w.run(staticPod("web", "0123"))
		w.sleep(time.Second)
		next := staticPod("web", "4567")
		w.change(func(set *pods.Set) { set.Pods = map[types.UID]*corev1.Pod{next.UID: next} })
		w.sleep(5 * time.Second)
		w.checkRunning("web/app#0")
		if w.agent.Ending(webName, next.UID) {
			t.Error("Ending while the sandbox of the old pod is left: got true, want false")
		}
		w.runtime.Release(failing)
		w.sleep(10 * time.Minute)
		w.sandboxOf(next)
		w.checkRunning("web/app#0")
	})
}

// TestStaticPodChangesBeforeSync checks that a change of a manifest takes effect before the API server has answered: it
// may repair the API server itself.
func TestStaticPodChangesBeforeSync(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		bad, good := staticPod("kube-apiserver", "0123"), staticPod("kube-apiserver", "4567")
		w.change(func(set *pods.Set) { set.Synced, set.Waiting = false, []pods.Source{pods.SourceAPI} })
		w.run(bad)
		w.sleep(time.Minute)
		w.change(func(set *pods.Set) { set.Pods = map[types.UID]*corev1.Pod{good.UID: good} })
		w.sleep(time.Minute)
		w.checkRunning("kube-apiserver/app#0")
		if all := w.runtime.Sandboxes(); len(all) != 1 || all[0].Metadata.Uid != "4567" {
			t.Errorf("sandboxes: got %v, want one", all)
		}
	})
}

// TestStaticPodComesBack checks that a manifest that is taken away and put back while its pod ends gives the same pod
// once more.
func TestStaticPodComesBack(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{TermTakes: 10 * time.Second})
		pod := staticPod("web", "0123")
		w.run(pod)
		w.sleep(time.Second)
		w.remove(pod.UID)
		w.sleep(time.Second)
		w.run(pod)
		w.sleep(5 * time.Second)
		if n := w.runtime.Verbs()["RunPodSandbox"]; n != 1 {
			t.Errorf("got %d sandboxes made before the old one had ended, want 1", n)
		}
		w.sleep(10 * time.Second)
		w.checkRunning("web/app#0")
	})
}

// TestStaticPodComesBackBeforeRemoval checks that a static pod whose manifest was taken away and put back does not wait
// until the runtime has removed what is left of it, as with the kubelet. A container that can be removed is removed
// before: one that had completed runs again.
func TestStaticPodComesBackBeforeRemoval(t *testing.T) {
	const box, container = "RemovePodSandbox", "RemoveContainer"
	for name, c := range map[string]struct {
		policy corev1.RestartPolicy
		fail   []string
		want   string
	}{
		"a sandbox is left":        {corev1.RestartPolicyNever, []string{box}, "web/app#0"},
		"a container is left, too": {corev1.RestartPolicyAlways, []string{box, container}, "web/app#1"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				for _, verb := range c.fail {
					w.runtime.Inject(&fake.Fault{Verb: verb, Err: errors.New("device or resource busy")})
				}
				pod := staticPod("web", "0123", func(p *corev1.Pod) { p.Spec.RestartPolicy = c.policy })
				w.run(pod)
				w.sleep(time.Second)
				w.remove(pod.UID)
				w.sleep(10 * time.Second)
				w.run(pod)
				w.sleep(2 * time.Minute)
				w.checkRunning(c.want)
			})
		})
	}
}

// TestStaticPodComesBackToTakenResources checks that a static pod whose manifest was put back is admitted once more,
// also if the runtime cannot remove what is left of it: it had given up what it held.
func TestStaticPodComesBackToTakenResources(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Inject(&fake.Fault{Verb: "RemovePodSandbox", Err: errors.New("device or resource busy")})
		first, second := staticPod("first", "0123", withCPU("3")), staticPod("second", "4567", withCPU("3"))
		w.run(first)
		w.sleep(time.Second)
		w.remove(first.UID)
		w.sleep(10 * time.Second)
		w.run(second)
		w.sleep(time.Second)
		w.run(first)
		w.sleep(2 * time.Minute)
		w.checkRunning("second/app#0")
		if n := len(w.eventsWith("OutOfcpu")) + len(w.eventsWith("UnexpectedAdmissionError")); n != 1 {
			t.Errorf("got %d events that the pod is refused, want 1", n)
		}
		w.remove(second.UID)
		w.sleep(2 * time.Minute)
		w.checkRunning("first/app#0")
	})
}

// TestMirror checks that only the mirror pod gets the status of a static pod.
func TestMirror(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := staticPod("web", "0123")
		w.run(pod)
		w.sleep(time.Second)
		mirror := apiPod("web", func(m *corev1.Pod) { m.Annotations["kubernetes.io/config.mirror"] = "0123" })
		w.change(func(set *pods.Set) {
			set.Mirrors = map[types.NamespacedName]*corev1.Pod{{Namespace: "default", Name: "web"}: mirror}
		})
		w.sleep(0)
		if st := w.status(mirror); st.Phase != corev1.PodRunning || !ready(st) ||
			containerStatus(st, "app").State.Running == nil {
			t.Errorf("status of the mirror: got %+v, want a ready pod that runs", st)
		}
		if _, known := w.agent.status.newest(pod.UID); known {
			t.Error("the status of the static pod: got it published under its own UID, want it under that of the mirror")
		}
		for _, c := range w.runtime.Containers() {
			w.runtime.ExitContainer(c.Id, 1, "")
		}
		w.sleep(time.Second)
		if n := containerStatus(w.status(mirror), "app").RestartCount; n != 1 {
			t.Errorf("after an exit the mirror: got %d restarts, want 1", n)
		}
		w.change(func(set *pods.Set) { set.Pods, set.Mirrors = map[types.UID]*corev1.Pod{}, nil })
		w.sleep(time.Minute)
		if _, known := w.agent.status.newest(mirror.UID); known {
			t.Error("the status of the mirror of a pod that is gone: got it kept, want it forgotten")
		}
	})
}

// TestMirrorOfBefore checks that a static pod whose manifest changed takes nothing from the mirror of what it was,
// and writes nothing to it.
func TestMirrorOfBefore(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		mirror := apiPod("web", func(m *corev1.Pod) {
			m.Annotations["kubernetes.io/config.mirror"] = "0123"
			m.Status = corev1.PodStatus{
				Phase: corev1.PodRunning,
				ContainerStatuses: []corev1.ContainerStatus{{Name: "app", ContainerID: "fake://gone",
					State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
			}
		})
		pod := staticPod("web", "4567")
		w.change(func(set *pods.Set) {
			set.Pods = map[types.UID]*corev1.Pod{pod.UID: pod}
			set.Mirrors = map[types.NamespacedName]*corev1.Pod{{Namespace: "default", Name: "web"}: mirror}
		})
		w.sleep(time.Minute)
		w.checkRunning("web/app#0")
		if _, known := w.agent.status.newest(mirror.UID); known {
			t.Error("the mirror of another pod: got a status, want none")
		}
	})
}

// TestAdmission checks that of two pods that do not fit together the older one runs, and the other's status says why
// it does not.
func TestAdmission(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		older, younger := apiPod("older", withCPU("3")), apiPod("younger", withCPU("3"))
		younger.CreationTimestamp.Time = older.CreationTimestamp.Add(time.Second)
		w.run(younger, older)
		w.sleep(time.Minute)
		w.checkRunning("older/app#0")
		if st := w.status(younger); st.Phase != corev1.PodFailed || st.Reason != "OutOfcpu" {
			t.Errorf("the pod that does not fit: got %s %s, want Failed OutOfcpu", st.Phase, st.Reason)
		}
		w.delete(older, 0)
		w.sleep(time.Minute)
		w.restart()
		w.sleep(time.Minute)
		w.checkRunning() // a pod that was refused has failed for good
		w.delete(younger, 0)
		w.sleep(time.Second)
		w.checkNothingLeft()
		if len(w.set.Pods) != 0 {
			t.Error("got no report that the refused pod is gone, want one")
		}
	})
}

// refusing refuses the pods of its name, and gives nothing to others.
type refusing struct {
	*placement.Manager
	pod string
}

// Rejection implements agent.Placement.
func (r refusing) Rejection(pod *corev1.Pod) *podstate.Rejection {
	if pod.Name != r.pod {
		return nil
	}
	return &podstate.Rejection{Reason: "TopologyAffinityError",
		Message: "Resources cannot be allocated with Topology locality"}
}

// TestReasonOfPlacement checks that a pod that requests more than the node has is refused with the reason of the
// resource managers, if they refuse it too, as the kubelet asks them first.
func TestReasonOfPlacement(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.placement = refusing{placementtest.Off(), "unplaceable"}
		w.restart()
		other, unplaceable := apiPod("other", withCPU("1000")), apiPod("unplaceable", withCPU("1000"))
		w.run(other, unplaceable)
		w.sleep(time.Minute)
		for pod, want := range map[*corev1.Pod]string{other: "OutOfcpu", unplaceable: "TopologyAffinityError"} {
			if got := w.status(pod).Reason; got != want {
				t.Errorf("reason for pod %s: got %q, want %s", pod.Name, got, want)
			}
		}
	})
}

// resuming notes the pods that an earlier run of the agent has admitted.
type resuming struct {
	*placement.Manager
	pods []string
}

// Resume implements agent.Placement.
func (r *resuming) Resume(pod *corev1.Pod) { r.pods = append(r.pods, pod.Name) }

// TestResumePlacement checks that pods that run when the agent starts, and no others, are offered what the resource
// managers have not given them yet.
func TestResumePlacement(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(apiPod("old"))
		w.sleep(time.Second)
		r := &resuming{Manager: placementtest.Off()}
		w.placement = r
		w.restart()
		w.run(apiPod("new"))
		w.sleep(time.Minute)
		w.checkRunning("old/app#0", "new/app#0")
		if !slices.Equal(r.pods, []string{"old"}) {
			t.Errorf("got %v, want the old pod, once", r.pods)
		}
	})
}

// TestAdmissionBesideOrphan checks that a pod that no source knows any more still ends, but what it asked for has
// been given away.
func TestAdmissionBesideOrphan(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{TermTakes: 10 * time.Second})
		old, next := apiPod("old", withCPU("3")), apiPod("next", withCPU("3"))
		w.run(old)
		w.sleep(time.Second)
		w.change(func(set *pods.Set) { set.Pods = map[types.UID]*corev1.Pod{next.UID: next} })
		w.sleep(5 * time.Second)
		w.checkRunning("old/app#0", "next/app#0")
		w.sleep(time.Minute)
		w.checkRunning("next/app#0")
	})
}

// TestManyAtOnce starts and deletes a hundred pods at the same time.
func TestManyAtOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.SandboxTakes = 100 * time.Millisecond
		var all []*corev1.Pod
		for i := range 100 {
			all = append(all, apiPod(fmt.Sprintf("web-%d", i)))
		}
		w.run(all...)
		w.sleep(10 * time.Second)
		if n := len(w.running()); n != len(all) {
			t.Errorf("got %d of %d run, want %d", n, len(all), len(all))
		}
		for _, pod := range all {
			w.delete(pod, 0)
		}
		w.sleep(10 * time.Second)
		w.checkNothingLeft()
	})
}

// TestSupervisorDoesNotBlock checks that the supervisor takes sets and hints, and explains, while all workers wait
// for a runtime that does not answer.
func TestSupervisorDoesNotBlock(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		for i := range 10 {
			w.run(apiPod(fmt.Sprintf("web-%d", i)))
		}
		w.sleep(time.Second)
		stuck := w.runtime.Inject(&fake.Fault{Hang: true})
		began := time.Now()
		for uid := range w.set.Pods {
			for range 300 {
				w.agent.InstanceEnded(uid, cri.Instance{Container: "gone"})
				w.agent.ObjectsChanged([]types.UID{uid})
				w.agent.ProbeChanged(uid)
				w.deliver()
			}
		}
		if _, err := w.agent.Explain(t.Context()); err != nil {
			t.Error(err)
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("the supervisor blocked for %v, want 0", waited)
		}
		w.runtime.Release(stuck)
		w.sleep(time.Minute)
		if n := len(w.running()); n != 10 {
			t.Errorf("running pods: got %d, want 10", n)
		}
	})
}

// TestHintsAfterTheEnd checks that a hint does not block when the supervisor has ended.
func TestHintsAfterTheEnd(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		l := w.agent
		w.end()
		for range 300 {
			l.InstanceEnded("anybody", cri.Instance{})
		}
		if _, err := l.Explain(t.Context()); err == nil {
			t.Error("explain after the end: got no error, want one")
		}
	})
}

func withCPU(request string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.Containers[0].Resources.Requests = quantities("cpu", request) }
}

// TestSpecChange checks that a container whose image was changed is replaced at once; the others stay.
func TestSpecChange(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.AddImage(fake.RemoteImage{Name: "busybox:2"})
		pod := apiPod("web", withRestart(corev1.RestartPolicyOnFailure), func(pod *corev1.Pod) {
			pod.Spec.Containers = append(pod.Spec.Containers, container("other"))
		})
		w.run(pod)
		w.sleep(time.Second)
		next := pod.DeepCopy()
		next.Generation, next.Spec.Containers[0].Image = 2, "busybox:2"
		w.run(next)
		w.sleep(time.Second)
		got := w.running()
		slices.Sort(got)
		if want := []string{"web/app#1", "web/other#0"}; !slices.Equal(got, want) {
			t.Errorf("running: got %v, want %v", got, want)
		}
	})
}
