package agent_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/kube/pods"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// wants sets the requests and limits of the container app.
func wants(cpu, memory string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		list := corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory)}
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
	}
}

// resize changes the resources of the pod as a user does, and waits for a second.
func (w *world) resize(pod *corev1.Pod, cpu, memory string) {
	w.setResources(pod, cpu, memory)
	w.sleep(time.Second)
}

// setResources changes the resources in the spec of the pod, and sends it to the agent.
func (w *world) setResources(pod *corev1.Pod, cpu, memory string) {
	w.changeSpec(pod, wants(cpu, memory))
}

// changeSpec changes the spec of the pod, and sends it to the agent.
func (w *world) changeSpec(pod *corev1.Pod, change func(*corev1.Pod)) {
	w.change(func(set *pods.Set) {
		next := set.Pods[pod.UID].DeepCopy()
		if w.agent != nil {
			if st, known := w.agent.status.newest(pod.UID); known {
				next.Status = st
			}
		}
		next.Generation++
		change(next)
		set.Pods[pod.UID] = next
	})
}

// checkSize checks the CPU limit of a container, in thousandths, and its memory limit, in the runtime and in the
// status, and the pod's conditions about resizes.
func (w *world) checkSize(pod *corev1.Pod, cpu int64, memory string, conditions ...string) {
	w.t.Helper()
	q := resource.MustParse(memory)
	for _, c := range w.runtime.Containers() {
		r := c.GetResources().GetLinux()
		if c.State != running || c.Labels["io.kubernetes.pod.uid"] != string(pod.UID) {
			continue
		}
		if max(0, r.CpuQuota) != cpu*100 || max(0, r.MemoryLimitInBytes) != q.Value() {
			w.t.Errorf("in the runtime: got quota %d, memory %d, want %d, %d",
				r.CpuQuota, r.MemoryLimitInBytes, cpu*100, q.Value())
		}
	}
	st := w.status(pod)
	has := st.ContainerStatuses[0].Resources
	if has.Limits.Cpu().MilliValue() != cpu || has.Limits.Memory().Cmp(q) != 0 {
		w.t.Errorf("in the status: got %v, want CPU %dm, memory %s", has, cpu, memory)
	}
	if got := w.resizing(pod); !slices.Equal(got, conditions) {
		w.t.Errorf("conditions: got %v, want %v", got, conditions)
	}
}

// resizing returns the pod's conditions about resizes.
func (w *world) resizing(pod *corev1.Pod) (all []string) {
	for _, c := range w.status(pod).Conditions {
		if strings.HasPrefix(string(c.Type), "PodResize") {
			all = append(all, fmt.Sprintf("%s %s %d", c.Type, c.Reason, c.ObservedGeneration))
		}
	}
	return all
}

// TestResizeUntilDeadline checks that a resize that could not be done does not count as completed when its pod reaches
// its deadline.
func TestResizeUntilDeadline(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("a", wants("1", "1Gi"), func(pod *corev1.Pod) { pod.Spec.ActiveDeadlineSeconds = ptr(int64(60)) })
		w.run(pod)
		w.sleep(time.Second)
		w.runtime.Inject(&fake.Fault{Verb: "UpdateContainerResources", Err: errors.New("no")})
		w.resize(pod, "2", "2Gi")
		w.checkSize(pod, 1000, "1Gi", "PodResizeInProgress Error 2")
		w.sleep(2 * time.Minute)
		if st := w.status(pod); st.Reason != "DeadlineExceeded" {
			t.Errorf("got reason %q, want DeadlineExceeded", st.Reason)
		}
		if got := w.eventsWith("ResizeCompleted"); len(got) > 0 {
			t.Errorf("got %q, want no event that the resize has completed", got)
		}
	})
}

// TestResize checks that a running container gets more resources without a restart, with events, and that a restart of
// the agent changes nothing.
func TestResize(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("a", wants("1", "1Gi"))
		w.run(pod)
		w.sleep(time.Second)
		w.checkSize(pod, 1000, "1Gi")
		w.resize(pod, "2", "2Gi")
		w.checkSize(pod, 2000, "2Gi")
		completed := len(w.eventsWith("ResizeCompleted"))
		w.restart()
		w.sleep(time.Minute)
		w.checkSize(pod, 2000, "2Gi")
		if got := w.eventsWith("ResizeCompleted"); len(got) != completed {
			t.Errorf("events after a restart of the agent: got %v, want no new one", got)
		}
		w.resize(pod, "1", "2Gi")
		w.checkSize(pod, 1000, "2Gi")
		w.checkRunning("a/app#0")
		for _, reason := range []string{"ResizeStarted", "ResizeCompleted"} {
			if got := w.eventsWith(reason); len(got) < 2 {
				t.Errorf("events %s: got %v, want two or more", reason, got)
			}
		}
		if got := w.eventsWith("ResizeError"); len(got) > 0 {
			t.Error(got)
		}
	})
}

// TestResizeWithoutMemoryLimit checks that the CPU of a container without a memory limit can change also on a runtime
// that removes no memory limit.
func TestResizeWithoutMemoryLimit(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.CRIO = true
		cpu := func(amount string) func(*corev1.Pod) {
			return func(pod *corev1.Pod) {
				list := corev1.ResourceList{"cpu": resource.MustParse(amount)}
				pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
			}
		}
		pod := apiPod("a", cpu("1"))
		w.run(pod)
		w.sleep(time.Second)
		w.changeSpec(pod, cpu("2"))
		w.sleep(time.Second)
		w.checkSize(pod, 2000, "0")
		w.checkRunning("a/app#0")
	})
}

// TestResizeToNoLimit checks that a limit of 0, which is none, removes the one that a container has: a runtime keeps
// what is 0.
func TestResizeToNoLimit(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("a", wants("1", "1Gi"))
		w.run(pod)
		w.sleep(time.Second)
		w.resize(pod, "0", "1Gi")
		w.checkSize(pod, 0, "1Gi")
		w.resize(pod, "0", "0")
		w.checkSize(pod, 0, "0")
		w.resize(pod, "2", "2Gi")
		w.checkSize(pod, 2000, "2Gi")
		w.checkRunning("a/app#0")
	})
}

// TestResizeReachesVolumes checks that a volume of the downward API follows the resources of a container.
func TestResizeReachesVolumes(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount the tmpfs that such a volume is in")
	}
	inWorld(t, func(t *testing.T, w *world) {
		size := &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{{
			Path:             "memory",
			ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "app", Resource: "limits.memory"},
		}}, DefaultMode: ptr(int32(0o644))}
		pod := apiPod("a", wants("1", "1Gi"), withVolume("size", corev1.VolumeSource{DownwardAPI: size}))
		check := func(want string) {
			t.Helper()
			got, err := os.ReadFile(w.path("pods/uid-a/volumes/kubernetes.io~downward-api/size/memory"))
			if string(got) != want {
				t.Errorf("the volume: got %q, want %q: %v", got, want, err)
			}
		}
		w.run(pod)
		w.sleep(time.Second)
		check("1073741824")
		w.resize(pod, "1", "2Gi")
		check("2147483648")
		w.remove(pod.UID)
		w.sleep(time.Second)
		w.checkNothingLeft()
	})
}

// TestResizeUnderPressure checks that a resize waits as long as the node would refuse the pod if it were new.
func TestResizeUnderPressure(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("a", wants("1", "1Gi"))
		w.run(pod)
		w.sleep(time.Second)
		w.refusal.Store(&podstate.Rejection{Reason: "Evicted", Message: "The node had condition: [DiskPressure]. "})
		w.resize(pod, "2", "1Gi")
		w.checkSize(pod, 1000, "1Gi", "PodResizePending Deferred 2")
		if got := w.eventsWith("ResizeDeferred"); len(got) != 1 || !strings.Contains(got[0], "[DiskPressure]") {
			t.Errorf("events: got %v, want one about the pressure", got)
		}
		w.refusal.Store(nil)
		w.sleep(2 * time.Minute)
		w.checkSize(pod, 2000, "1Gi")
	})
}

// TestResizeIsDeferred checks that a resize that does not fit waits, also across a restart of the agent, until another
// pod has ended.
func TestResizeIsDeferred(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := apiPod("a", wants("2", "1Gi")), apiPod("b", wants("1", "1Gi"))
		w.run(a)
		w.sleep(time.Second)
		w.run(b)
		w.sleep(time.Second)
		w.resize(b, "3", "1Gi")
		w.checkSize(b, 1000, "1Gi", "PodResizePending Deferred 2")
		w.restart()
		w.sleep(time.Minute)
		w.checkSize(b, 1000, "1Gi", "PodResizePending Deferred 2")
		if got := w.eventsWith("ResizeDeferred"); len(got) == 0 ||
			!strings.Contains(got[0], "requested: 3000, used: 2000, capacity: 4000") {
			t.Errorf("events: got %v", got)
		}
		w.checkWaits(b, "resize", "Deferred: Node didn't have enough resource: cpu, requested: 3000, used: 2000")
		w.delete(a, 0)
		w.sleep(time.Minute)
		w.checkSize(b, 3000, "1Gi")
		w.checkRunning("b/app#0")
		w.delete(b, 0)
		w.sleep(time.Minute)
		w.checkNothingLeft()
	})
}

// TestShrinkingPodHoldsItsMemory checks that another pod gets memory that a pod uses beyond its new limit only when the
// resize of that pod is done, also after a restart of the agent, and then at once.
func TestShrinkingPodHoldsItsMemory(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		shrinking, growing := apiPod("a", wants("1", "3Gi")), apiPod("b", wants("1", "1Gi"))
		use := func(gigabytes uint64) {
			for _, c := range w.runtime.Containers() {
				if c.Labels["io.kubernetes.pod.uid"] == string(shrinking.UID) {
					w.runtime.SetUsage(c.Id, fake.Usage{MemoryBytes: gigabytes << 30})
				}
			}
		}
		w.run(shrinking, growing)
		w.sleep(time.Second)
		use(2)
		w.setResources(shrinking, "1", "1Gi")
		w.resize(growing, "1", "3Gi")
		w.checkSize(shrinking, 1000, "3Gi", "PodResizeInProgress Error 2")
		w.checkSize(growing, 1000, "1Gi", "PodResizePending Deferred 2")
		w.restart()
		w.sleep(90 * time.Second)
		w.checkSize(shrinking, 1000, "3Gi", "PodResizeInProgress Error 2")
		w.checkSize(growing, 1000, "1Gi", "PodResizePending Deferred 2")
		late := apiPod("c", wants("1", "1Gi"))
		w.run(late)
		w.sleep(time.Second)
		if st := w.status(late); st.Reason != "OutOfmemory" {
			t.Errorf("a new pod: got phase %s, reason %s, want OutOfmemory", st.Phase, st.Reason)
		}
		use(0)
		for seconds := 0; seconds < 600 && len(w.resizing(shrinking)) > 0; seconds++ {
			w.sleep(time.Second)
		}
		w.checkSize(shrinking, 1000, "1Gi")
		w.checkSize(growing, 1000, "3Gi")
	})
}

// TestDeferredResizeIsTriedAgain checks that a deferred resize is done when another pod has ended or the node has got
// more CPUs, without news from the API server.
func TestDeferredResizeIsTriedAgain(t *testing.T) {
	for name, enough := range map[string]func(w *world){
		"a pod has ended": func(w *world) { w.exit("job", 0) },
		"the node has more CPUs": func(w *world) {
			list := w.allocatable.DeepCopy()
			list["cpu"] = resource.MustParse("8")
			w.grown.Store(&list)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := apiPod("a", wants("2", "1Gi"), withRestart(corev1.RestartPolicyNever))
				a.Spec.Containers[0].Name = "job"
				b := apiPod("b", wants("1", "1Gi"))
				w.run(a, b)
				w.sleep(time.Second)
				w.resize(b, "3", "1Gi")
				w.checkSize(b, 1000, "1Gi", "PodResizePending Deferred 2")
				enough(w)
				w.sleep(2 * time.Minute)
				w.checkSize(b, 3000, "1Gi")
			})
		})
	}
}

// TestResizeWhileTheAgentIsAway checks that a resize that is requested while the agent does not run goes through
// admission, because the allocation is recorded. If that file cannot be read, the agent uses the status.
func TestResizeWhileTheAgentIsAway(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := apiPod("a", wants("2", "1Gi")), apiPod("b", wants("1", "1Gi"))
		w.run(a)
		w.run(b)
		w.sleep(time.Second)
		w.end()
		for i, file := range []string{"", "\x00\x00"} {
			if file != "" {
				if err := os.WriteFile(w.path("pods/uid-b/granted-resources"), []byte(file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			w.mu.Lock()
			next := w.set.Pods[b.UID].DeepCopy()
			next.Generation++
			wants([]string{"4", "3"}[i], "1Gi")(next)
			w.set.Pods[b.UID] = next
			w.mu.Unlock()
			w.begin()
			w.sleep(time.Minute)
			w.checkSize(b, 1000, "1Gi", fmt.Sprintf("PodResizePending Deferred %d", i+2))
			w.end()
		}
	})
}

// TestOldAllocationRecord checks that the record of an allocation does not count if a kubelet has resized the pod
// since: it leaves the file as it was, and says in the status what it has done.
func TestOldAllocationRecord(t *testing.T) {
	for name, pending := range map[string]bool{"the last resize is done": false, "one is deferred": true} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				pod := apiPod("a", wants("1", "1Gi"))
				w.run(pod)
				w.sleep(time.Second)
				w.resize(pod, "2", "2Gi")
				record := w.path("pods/uid-a/granted-resources")
				old, err := os.ReadFile(record)
				if err != nil {
					t.Fatal(err)
				}
				w.resize(pod, "3", "3Gi")
				w.refusal.Store(&podstate.Rejection{Reason: "Evicted", Message: "The node had condition: [DiskPressure]. "})
				var conditions []string
				if pending {
					w.resize(pod, "4", "3Gi")
					conditions = []string{"PodResizePending Deferred 4"}
				}
				w.end()
				if err := os.WriteFile(record, old, 0o600); err != nil {
					t.Fatal(err)
				}
				w.begin()
				w.sleep(time.Minute)
				w.checkSize(pod, 3000, "3Gi", conditions...)
			})
		})
	}
}

// TestResizeBackOutlivesRestart checks that a resize to the size at creation, which the runtime has refused so far,
// goes on if another part of the spec has changed and the agent restarts.
func TestResizeBackOutlivesRestart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("a", wants("1", "1Gi"))
		w.run(pod)
		w.sleep(time.Second)
		w.resize(pod, "2", "2Gi")
		fault := w.runtime.Inject(&fake.Fault{Verb: "UpdateContainerResources", Err: errors.New("busy")})
		w.resize(pod, "1", "1Gi")
		w.changeSpec(pod, func(next *corev1.Pod) { next.Spec.Tolerations = []corev1.Toleration{{Key: "a"}} })
		w.sleep(time.Second)
		w.end()
		w.runtime.Release(fault)
		w.begin()
		w.sleep(time.Minute)
		w.checkSize(pod, 1000, "1Gi")
	})
}

// TestPodResourcesAreAdded checks that resources of the pod as a whole, where it had none, go through admission.
func TestPodResourcesAreAdded(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := apiPod("a", wants("2", "1Gi")), apiPod("b", wants("1", "1Gi"))
		w.run(a, b)
		w.sleep(time.Second)
		add := func(cpu string) {
			w.changeSpec(b, func(next *corev1.Pod) {
				next.Spec.Resources = &apiPod("", wants(cpu, "1Gi")).Spec.Containers[0].Resources
			})
			w.sleep(time.Second)
		}
		add("3")
		w.checkSize(b, 1000, "1Gi", "PodResizePending Deferred 2")
		w.restart()
		w.sleep(time.Minute)
		w.checkSize(b, 1000, "1Gi", "PodResizePending Deferred 2")
		add("2")
		w.checkSize(b, 1000, "1Gi")
		if got := w.status(b).Resources.Requests.Cpu().MilliValue(); got != 2000 {
			t.Errorf("the pod holds %dm CPU, want 2000m", got)
		}
	})
}

// TestPodResourcesWithOverhead checks that the overhead of a pod with resources of its own is not taken for a part of
// them when its allocation is read from its status, be it that of the agent or of a kubelet: there is no resize then.
func TestPodResourcesWithOverhead(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory)}
	}
	for name, shown := range map[string]corev1.ResourceList{
		"of the agent": list("1250m", "1088Mi"),
		"of a kubelet": list("1249m", "1Gi"), // the weight of the cgroup, and the memory of the spec
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				pod := apiPod("a", restartsForMemory, func(pod *corev1.Pod) {
					own := corev1.ResourceRequirements{Requests: list("1", "1Gi"), Limits: list("1", "1Gi")}
					pod.Spec.Resources, pod.Spec.Overhead = &own, list("250m", "64Mi")
				})
				w.run(pod)
				w.sleep(time.Second)
				want := w.status(pod).Resources
				w.end()
				if name == "of a kubelet" {
					w.runtime.Unannotate(spec.AnnotationResources)
				}
				w.changeSpec(pod, func(next *corev1.Pod) {
					next.Spec.Tolerations = []corev1.Toleration{{Key: "a"}}
					next.Status.Resources.Requests = shown
				})
				w.begin()
				w.sleep(time.Minute)
				w.checkRunning("a/app#0")
				if diff := cmp.Diff(want, w.status(pod).Resources); diff != "" {
					t.Errorf("resources of the pod (-before +after a change of its tolerations): %s", diff)
				}
				if got := append(w.eventsWith("Resize"), w.resizing(pod)...); len(got) > 0 {
					t.Errorf("got %q, want no resize", got)
				}
			})
		})
	}
}

// TestResizeOfWaitingContainer checks that a resize of a container that waits for its back-off goes through admission,
// if it is requested while the agent does not run.
func TestResizeOfWaitingContainer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := apiPod("a", wants("2", "1Gi")), apiPod("b", wants("1", "1Gi"))
		b.Spec.Containers[0].Name = "crashing"
		w.run(a, b)
		w.sleep(time.Second)
		for range 2 { // the first time it restarts at once
			w.exit("crashing", 1)
			w.sleep(time.Second)
		}
		if st := w.status(b); st.ContainerStatuses[0].State.Waiting == nil {
			t.Fatalf("got %+v, want a container that waits", st.ContainerStatuses[0].State)
		}
		w.end()
		w.setResources(b, "4", "1Gi")
		w.begin()
		w.sleep(time.Minute)
		w.checkSize(b, 1000, "1Gi", "PodResizePending Deferred 2")
	})
}

// TestResizeIsDeferredAtTakeover checks that a resize that the kubelet has deferred goes through admission: the status
// shows the generation that requests it, but nodelet has no record of the allocation.
func TestResizeIsDeferredAtTakeover(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := apiPod("a", wants("2", "1Gi")), apiPod("b", wants("1", "1Gi"))
		w.run(a)
		w.run(b)
		w.sleep(time.Second)
		w.resize(b, "3", "1Gi")
		w.checkSize(b, 1000, "1Gi", "PodResizePending Deferred 2")
		w.end()
		if err := os.Remove(w.path("pods/uid-b/granted-resources")); err != nil {
			t.Fatal(err)
		}
		w.begin()
		w.sleep(time.Minute)
		w.checkSize(b, 1000, "1Gi", "PodResizePending Deferred 2")
	})
}

// TestAdmissionBesideDeferredResize checks that a pod that comes while the agent is away is admitted beside what the
// others hold, not beside what they would like to have, as with the kubelet.
func TestAdmissionBesideDeferredResize(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := apiPod("a", wants("1", "1Gi")), apiPod("b", wants("1", "1Gi"))
		w.run(a)
		w.sleep(time.Second)
		w.run(b)
		w.sleep(time.Second)
		w.resize(b, "4", "1Gi")
		w.checkSize(b, 1000, "1Gi", "PodResizePending Deferred 2")
		w.end()
		w.mu.Lock()
		c := apiPod("c", wants("1", "1Gi"))
		w.set.Pods[c.UID] = c
		w.mu.Unlock()
		w.begin()
		w.sleep(time.Minute)
		w.checkRunning("a/app#0", "b/app#0", "c/app#0")
		w.checkSize(b, 1000, "1Gi", "PodResizePending Deferred 2")
	})
}

// restartsForMemory makes the container app restart for another amount of memory.
func restartsForMemory(pod *corev1.Pod) {
	pod.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{
		ResourceName:  "memory",
		RestartPolicy: corev1.RestartContainer,
	}}
}

// TestResizePolicyAfterTakeover checks that a container that the kubelet has created, which does not say with which
// resources, restarts for a resize if its policy requires it, and not for the takeover.
func TestResizePolicyAfterTakeover(t *testing.T) {
	for name, resize := range map[string]func(w *world, pod *corev1.Pod){
		"while the agent runs": func(w *world, pod *corev1.Pod) {
			w.begin()
			w.sleep(time.Minute)
			w.checkRunning("a/app#0")
			w.setResources(pod, "2", "2Gi")
		},
		"while it is away": func(w *world, pod *corev1.Pod) {
			w.setResources(pod, "2", "2Gi")
			w.begin()
		},
		"and the agent ends before the container": func(w *world, pod *corev1.Pod) {
			w.begin()
			w.runtime.Inject(&fake.Fault{Verb: "StopContainer", Hang: true, Times: 1})
			w.resize(pod, "2", "2Gi")
			w.restart()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				pod := apiPod("a", wants("1", "1Gi"), restartsForMemory)
				w.run(pod)
				w.sleep(time.Second)
				w.end()
				w.runtime.Unannotate(spec.AnnotationResources)
				resize(w, pod)
				w.sleep(time.Minute)
				w.checkRunning("a/app#1")
				w.checkSize(pod, 2000, "2Gi")
			})
		})
	}
}

// TestResizePolicyAfterKubelet checks that a container that a kubelet has started after a resize restarts for the next
// one if its policy requires it: what another instance had before the first resize does not count.
func TestResizePolicyAfterKubelet(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("a", wants("1", "1Gi"), restartsForMemory)
		w.run(pod)
		w.sleep(time.Second)
		w.resize(pod, "1", "2Gi")
		w.sleep(time.Minute)
		w.checkRunning("a/app#1")
		w.end()
		w.runtime.Unannotate(spec.AnnotationResources)
		w.begin()
		w.sleep(time.Minute)
		w.resize(pod, "1", "1Gi")
		w.sleep(time.Minute)
		w.checkRunning("a/app#2")
		w.checkSize(pod, 1000, "1Gi")
	})
}

// TestResizeWithRestart checks that a resize with the policy RestartContainer replaces the container once.
func TestResizeWithRestart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("a", wants("1", "1Gi"), restartsForMemory)
		w.run(pod)
		w.sleep(time.Second)
		w.resize(pod, "2", "1Gi")
		w.checkRunning("a/app#0")
		w.resize(pod, "2", "2Gi")
		w.sleep(time.Minute)
		w.checkRunning("a/app#1")
		w.checkSize(pod, 2000, "2Gi")
		w.resize(pod, "2", "3Gi")
		w.sleep(time.Minute)
		w.checkRunning("a/app#2")
		w.restart()
		w.sleep(time.Minute)
		w.checkRunning("a/app#2")
		w.checkSize(pod, 2000, "3Gi")
	})
}
