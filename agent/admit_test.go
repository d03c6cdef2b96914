package agent_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/node"
	"github.com/nodelet/nodelet/kube/pods"
	"github.com/nodelet/nodelet/test/cri/fake"
	"github.com/nodelet/nodelet/test/kube/apitest"
)

const systemCritical = 2_000_000_000

// TestAdmissionKnowsTheNode checks that a pod whose selector names a label that only the API server's Node object has
// is not refused because the pods are heard of before the Node. Reporter, Sources and Supervisor are real.
func TestAdmissionKnowsTheNode(t *testing.T) {
	for what, latency := range map[string]time.Duration{
		"a near API server": time.Millisecond,
		"a far API server":  300 * time.Millisecond,
	} {
		t.Run(what, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.end()
				server, client := apitest.New(t)
				server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: map[string]string{"zone": "a"}}})
				pod := apiPod("web", withZone("a"))
				pod.Spec.NodeName = "node"
				server.Put(pod)
				server.Intercept(func(r *http.Request) *apierrors.StatusError {
					if strings.Contains(r.URL.Path, "/nodes") {
						time.Sleep(latency)
					}
					return nil
				})
				reporter, err := node.New(node.Config{
					Changed:      func(*corev1.Node) {},
					Name:         "node",
					Registration: node.Registration{Register: true, ExternalCloud: true},
					RootDir:      w.root,
					MaxPods:      110,
					Intervals: node.Intervals{
						StatusInterval: 10 * time.Second,
						ReportInterval: time.Minute,
						LeaseDuration:  40 * time.Second,
					},
					Event: func(_, _, _ string) {},
					Log:   w.newLog(),
				}, client.Core, server.Config(t), func() error { return nil })
				if err != nil {
					t.Fatal(err)
				}
				sources := pods.New(pods.Config{NodeName: "node", API: true, Event: func(_, _, _ string) {}, Log: w.newLog()})
				w.nodeObject, w.nodeSeen = reporter.Node, reporter.Seen()
				ctx, cancel := context.WithCancel(t.Context())
				var parts sync.WaitGroup
				defer parts.Wait()
				defer cancel()
				w.begin()
				supervisor := w.agent.Supervisor
				parts.Go(func() { sources.Deliver(ctx, supervisor.Want) })
				parts.Go(func() { sources.Run(ctx) })
				parts.Go(func() { sources.FollowAPI(ctx, client.Core) })
				w.sleep(latency)
				w.checkWaits(pod, "its admission", "the Node object")
				parts.Go(func() { reporter.Run(ctx) })
				w.sleep(10 * time.Second)
				w.checkRunning("web/app#0")
			})
		})
	}
}

func withZone(zone string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{"zone": zone} }
}

// TestOutdatedNode checks that a pod whose selector names a label that the node has just got is not refused because the
// watch has not brought that label yet. A pod that the node really does not match is refused, and so are both if the
// object cannot be read.
func TestOutdatedNode(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var zone atomic.Pointer[string]
		zone.Store(ptr(""))
		w.nodeObject = func() *corev1.Node {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: map[string]string{"zone": *zone.Load()}}}
		}
		early := apiPod("early", withZone("a"))
		w.run(early)
		w.sleep(time.Second)
		w.refreshNode = func() { zone.Store(ptr("a")) }
		fits, other := apiPod("fits", withZone("a")), apiPod("other", withZone("b"))
		w.run(fits, other)
		w.sleep(time.Second)
		w.checkRunning("fits/app#0")
		for _, pod := range []*corev1.Pod{early, other} {
			if st := w.status(pod); st.Phase != corev1.PodFailed || st.Reason != "NodeAffinity" {
				t.Errorf("pod %s: got %s, %s, want Failed, NodeAffinity", pod.Name, st.Phase, st.Reason)
			}
		}
	})
}

// TestUndecidedPodHoldsNothing checks that a pod that the node does not match takes nothing away from others while the
// Node object is read again.
func TestUndecidedPodHoldsNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.nodeObject = func() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}} }
		w.refreshNode = func() { time.Sleep(10 * time.Second) }
		other, web := apiPod("other", withZone("b"), withCPU("3")), apiPod("web", withCPU("3"))
		w.run(other)
		w.sleep(time.Second)
		w.checkWaits(other, "its admission", "read again")
		w.run(web)
		w.sleep(time.Minute)
		w.checkRunning("web/app#0")
		if st := w.status(other); st.Phase != corev1.PodFailed {
			t.Errorf("got %s, want Failed", st.Phase)
		}
	})
}

// TestUndecidedPodIsDeleted checks that a pod that is deleted while the Node object is read again was not refused.
func TestUndecidedPodIsDeleted(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.nodeObject = func() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}} }
		w.refreshNode = func() { time.Sleep(10 * time.Second) }
		w.lostDeletes = 1 // explain still shows it
		web := apiPod("web", withZone("b"))
		w.run(web)
		w.sleep(time.Second)
		w.checkWaits(web, "its admission", "read again")
		w.delete(web, 0)
		w.sleep(time.Second)
		if got := w.explained(); !strings.Contains(got, "deleted") || strings.Contains(got, "NodeAffinity") {
			t.Errorf("got:\n%s\nwant a deleted pod without a reason of the node", got)
		}
	})
}

// TestOnlyNewAPIPodsWaitForTheNode checks that before the Node object is known static pods start, and pods that are
// on the node already are looked after.
func TestOnlyNewAPIPodsWaitForTheNode(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		old, static := apiPod("old"), staticPod("static", "0123")
		fresh := apiPod("fresh")
		w.run(old)
		w.sleep(time.Second)
		w.end()
		seen := make(chan struct{})
		w.nodeSeen = seen
		w.begin()
		w.run(static, fresh)
		w.sleep(time.Minute)
		w.checkRunning("old/app#0", "static/app#0")
		w.checkWaits(fresh, "its admission", "the Node object")
		for _, c := range w.runtime.Containers() {
			if c.Labels["io.kubernetes.pod.name"] == "old" {
				w.runtime.ExitContainer(c.Id, 1, "")
			}
		}
		w.sleep(time.Minute)
		w.checkRunning("static/app#0", "old/app#1")
		close(seen)
		w.sleep(time.Second)
		w.checkRunning("static/app#0", "old/app#1", "fresh/app#0")
	})
}

// TestStartTimeAdmitsNothing checks that a status that says that the pod has started does not admit it; what is on
// the node does.
func TestStartTimeAdmitsNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		fits := apiPod("fits", withCPU("3"))
		w.run(fits)
		w.sleep(time.Second)
		forged := apiPod("forged", withCPU("3"))
		forged.Status.StartTime = ptr(metav1.Now())
		w.run(forged)
		w.sleep(time.Second)
		w.checkRunning("fits/app#0")
		if st := w.status(forged); st.Phase != corev1.PodFailed || st.Reason != "OutOfcpu" {
			t.Errorf("got status %s %s, want Failed OutOfcpu", st.Phase, st.Reason)
		}
		w.amnesia = true // the API never hears of the start of fits
		w.allocatable["cpu"] = quantities("cpu", "2")["cpu"]
		w.restart()
		w.sleep(time.Minute)
		w.checkRunning("fits/app#0")
	})
}

// TestRunningStaticPodAfterRestart checks that pods that run are not admitted again when the agent restarts, static or
// not, though less is allocatable than before.
func TestRunningStaticPodAfterRestart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(staticPod("etcd", "0123", withCPU("2")))
		w.sleep(time.Second)
		w.run(apiPod("low", withCPU("2")))
		w.sleep(time.Second)
		w.allocatable["cpu"] = quantities("cpu", "3900m")["cpu"]
		w.restart()
		w.sleep(anHour)
		w.checkRunning("etcd/app#0", "low/app#0")
	})
}

// TestStaticPodsComeFirst checks that of the pods in one set, static pods are admitted first, however young.
func TestStaticPodsComeFirst(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.end()
		api, static := apiPod("batch", withCPU("3")), staticPod("etcd", "0123", withCPU("3"))
		static.CreationTimestamp.Time = api.CreationTimestamp.Add(time.Hour) // a manifest may say anything
		w.run(api, static)
		w.begin()
		w.sleep(time.Minute)
		w.checkRunning("etcd/app#0")
		if st := w.status(api); st.Reason != "OutOfcpu" {
			t.Errorf("got reason %q, want OutOfcpu", st.Reason)
		}
	})
}

// TestCriticalPodPreempts checks that pods of lower priority end so that a critical one can run, only those that are
// needed, and the critical one waits for their end.
func TestCriticalPodPreempts(t *testing.T) {
	for what, critical := range map[string]*corev1.Pod{
		"a static pod":                   staticPod("critical", "0123", withCPU("3")),
		"a pod with a critical priority": apiPod("critical", withCPU("3"), withPriority(systemCritical)),
	} {
		t.Run(what, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.runtime.Script("app", fake.Script{TermTakes: 10 * time.Second})
				small, big := apiPod("small", withCPU("1")), apiPod("big", withCPU("2"))
				free := apiPod("free")
				w.run(small, big, free)
				w.sleep(time.Second)
				w.run(critical)
				w.sleep(5 * time.Second)
				if got := len(w.running()); got != 3 {
					t.Errorf("got %d running containers while the pods end, want 3", got)
				}
				w.checkWaits(critical, "pods that end for it", "to free cpu")
				late := apiPod("late", withCPU("1"))
				w.run(late) // the place that becomes free is not for others
				w.sleep(10 * time.Second)
				got, want := w.running(), []string{"small/app#0", "free/app#0", "critical/app#0"}
				slices.Sort(got)
				slices.Sort(want)
				if !slices.Equal(got, want) {
					t.Errorf("running: got %v, want %v", got, want)
				}
				st := w.status(big)
				const message = "Preempted in order to admit critical pod"
				if st.Phase != corev1.PodFailed || st.Reason != "Preempting" || st.Message != message {
					t.Errorf("got status %s %s %q of the preempted pod", st.Phase, st.Reason, st.Message)
				}
				if c := disruption(st); c.Reason != corev1.PodReasonTerminationByKubelet {
					t.Errorf("got condition %+v, want one with reason %s", c, corev1.PodReasonTerminationByKubelet)
				}
				if n := len(w.eventsWith("Preempting")); n != 1 {
					t.Errorf("got %d events with reason Preempting, want 1", n)
				}
				if st := w.status(late); st.Reason != "OutOfcpu" {
					t.Errorf("got reason %q for the pod that came late, want OutOfcpu", st.Reason)
				}
			})
		})
	}
}

func disruption(st corev1.PodStatus) (c corev1.PodCondition) {
	for _, c := range st.Conditions {
		if c.Type == corev1.DisruptionTarget {
			return c
		}
	}
	return c
}

// TestPreemptedPodThatEndsWell checks that a preempted pod whose containers all exit with 0 has succeeded, as with
// the kubelet.
func TestPreemptedPodThatEndsWell(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{CleanStop: true})
		low := apiPod("low", withCPU("3"))
		w.run(low)
		w.sleep(time.Second)
		w.run(apiPod("critical", withCPU("3"), withPriority(systemCritical)))
		w.sleep(time.Minute)
		w.checkRunning("critical/app#0")
		st := w.status(low)
		if c := disruption(st); st.Phase != corev1.PodSucceeded || c.Status != corev1.ConditionTrue {
			t.Errorf("got phase %s and condition %+v, want Succeeded and a disruption", st.Phase, c)
		}
	})
}

// TestStuckVictim checks that a pod that cannot be ended does not keep a critical one from running for good.
func TestStuckVictim(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		low, critical := apiPod("low", withCPU("3")), staticPod("critical", "0123", withCPU("3"))
		w.run(low)
		w.sleep(time.Second)
		stuck := w.runtime.Inject(&fake.Fault{Verb: "StopContainer", Hang: true})
		w.run(critical)
		w.sleep(44 * time.Second)
		w.checkRunning("low/app#0")
		w.sleep(2 * time.Second)
		w.checkRunning("low/app#0", "critical/app#0")
		w.runtime.Release(stuck)
		w.sleep(time.Minute)
		w.checkRunning("critical/app#0")
	})
}

// TestPreemptorDeleted checks that a critical pod that is to go while others end for it never starts.
func TestPreemptorDeleted(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{TermTakes: 10 * time.Second})
		low, critical := apiPod("low", withCPU("3")), apiPod("critical", withCPU("3"), withPriority(systemCritical))
		w.run(low)
		w.sleep(time.Second)
		w.run(critical)
		w.sleep(time.Second)
		w.delete(critical, 30*time.Second)
		w.sleep(time.Minute)
		w.checkRunning()
		if w.set.Pods[critical.UID] != nil {
			t.Error("got no report that the pod is gone, want one")
		}
	})
}

// TestRefusedStaticPodIsTriedAgain checks that a refused static pod runs when there are enough resources, that its
// mirror has that status, and that there is one event about the refusal.
func TestRefusedStaticPodIsTriedAgain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		other, pod := staticPod("other", "4567", withCPU("3")), staticPod("etcd", "0123", withCPU("3"))
		mirror := apiPod("etcd", func(m *corev1.Pod) { m.Annotations["kubernetes.io/config.mirror"] = "0123" })
		w.run(other)
		w.sleep(time.Second)
		w.change(func(set *pods.Set) {
			set.Pods[pod.UID] = pod
			set.Mirrors = map[types.NamespacedName]*corev1.Pod{{Namespace: "default", Name: "etcd"}: mirror}
		})
		w.sleep(anHour)
		w.checkRunning("other/app#0")
		st := w.status(mirror)
		if st.Phase != corev1.PodFailed || st.Reason != "UnexpectedAdmissionError" ||
			!strings.Contains(st.Message, "(res: cpu, q: 2000)") {
			t.Errorf("got status %s %s %q of the refused pod", st.Phase, st.Reason, st.Message)
		}
		if n := len(w.eventsWith("UnexpectedAdmissionError")); n != 1 {
			t.Errorf("got %d events about the refusal, want 1", n)
		}
		shown := *mirror
		shown.Status = st
		w.change(func(set *pods.Set) {
			delete(set.Pods, other.UID)
			set.Mirrors = map[types.NamespacedName]*corev1.Pod{{Namespace: "default", Name: "etcd"}: &shown}
		})
		w.sleep(2 * time.Minute)
		w.checkRunning("etcd/app#0")
		if st := w.status(mirror); st.Phase != corev1.PodRunning || !ready(st) {
			t.Errorf("got status %s %s of the mirror, want Running", st.Phase, st.Reason)
		}
	})
}

// TestGraceOfOrphan checks that a pod that no source knows ends with the grace period that its containers were made
// with.
func TestGraceOfOrphan(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{IgnoresTerm: true})
		pod := apiPod("old", func(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = ptr(int64(100)) })
		w.run(pod)
		w.sleep(time.Second)
		w.end()
		w.remove(pod.UID)
		w.begin()
		w.sleep(90 * time.Second)
		w.checkRunning("old/app#0")
		w.sleep(20 * time.Second)
		w.checkRunning()
	})
}
