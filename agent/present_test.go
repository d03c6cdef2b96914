package agent

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/cri"
)

// podOf is a pod with one container that requests that much CPU; "" for none.
func podOf(name, cpu string) *corev1.Pod {
	c := corev1.Container{Name: "app"}
	if cpu != "" {
		c.Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse(cpu)}
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{c}}}
}

// TestShare checks that the shares of the burstable class follow from the pods that run, and are set only when they
// change. Before the runtime has listed its pods, and each that runs has a worker, the class keeps the shares of the
// last run of the agent.
func TestShare(t *testing.T) {
	files := Backends{PodFiles: noFiles{}, AllocatedPods: noFiles{}}
	s := NewSupervisor(Config{Backends: files, PodGone: func() {}, Log: discard()})
	shares := s.shares.next
	s.publish()
	if len(shares) != 0 {
		t.Errorf("before the first list: got demand %+v, want no change", <-shares)
	}
	s.table.listed = map[types.UID]cri.PodSummary{"late": {UID: "late", Ready: true}}
	s.publish()
	if len(shares) != 0 {
		t.Errorf("while a pod runs that no source has delivered: got demand %+v, want no change", <-shares)
	}
	s.table.listed = map[types.UID]cri.PodSummary{"over": {UID: "over"}}
	guaranteed := podOf("guaranteed", "4")
	r := &guaranteed.Spec.Containers[0].Resources
	r.Requests["memory"] = resource.MustParse("1Gi")
	r.Limits = r.Requests
	one, two := podOf("one", "250m"), podOf("two", "1")
	one.Spec.Containers[0].Resources.Requests["memory"] = resource.MustParse("2Mi")
	two.Spec.Containers[0].Resources.Requests["memory"] = resource.MustParse("1Mi")
	over := podOf("over", "2")
	over.Status.Phase = corev1.PodSucceeded
	for _, pod := range []*corev1.Pod{one, two, podOf("effortless", ""), guaranteed, over, podOf("refused", "8")} {
		e := &entry{source: pod, worker: newWorker(s.cfg, runtimeFacts{}, func() {})}
		s.dispatcher.allocate(e, pod)
		if pod.Name == "refused" {
			e.rejected = &podstate.Rejection{}
		}
		s.table.workers[pod.UID] = e
	}
	s.publish()
	want := podstate.Demand{BurstableCPU: 1250, GuaranteedMemory: 1 << 30, BurstableMemory: 3 << 20}
	if got := <-shares; got != want {
		t.Errorf("got demand %+v, want %+v", got, want)
	}
	s.publish()
	if len(shares) != 0 {
		t.Errorf("the same sum was handed on again: got %+v, want nothing", <-shares)
	}
	delete(s.table.workers, "two")
	s.publish()
	want = podstate.Demand{BurstableCPU: 250, GuaranteedMemory: 1 << 30, BurstableMemory: 2 << 20}
	if got := <-shares; got != want {
		t.Errorf("got demand %+v, want %+v", got, want)
	}
}

// TestEnding checks that Ending is true while another pod of the name has not released its resources, or has no worker
// and is in the runtime, and before the first list, and that PodGone is called when that ends.
func TestEnding(t *testing.T) {
	reported := 0
	s := NewSupervisor(Config{PodGone: func() { reported++ }, Log: discard()})
	name := types.NamespacedName{Namespace: "default", Name: "web"}
	s.publish()
	if !s.Ending(name, "new") || reported != 0 {
		t.Errorf("before the first list: got Ending false or %d calls of PodGone, want true and none", reported)
	}
	s.table.listed = map[types.UID]cri.PodSummary{"left": {UID: "left", Namespace: "default", Name: "web"}}
	s.publish()
	if !s.Ending(name, "new") || s.Ending(name, "left") || reported != 1 {
		t.Errorf("got present %v, %d calls of PodGone", *s.presence.pods.Load(), reported)
	}
	s.table.listed = map[types.UID]cri.PodSummary{}
	s.publish()
	if s.Ending(name, "new") || reported != 2 {
		t.Errorf("got present %v, %d calls of PodGone", *s.presence.pods.Load(), reported)
	}
	old := podOf("web", "")
	old.UID = "old"
	s.table.workers["old"] = &entry{source: old, worker: newWorker(s.cfg, runtimeFacts{}, func() {})}
	s.publish()
	if !s.Ending(name, "new") || !s.Ending(name, "") || s.Ending(name, "old") ||
		s.Ending(types.NamespacedName{Name: "web"}, "") {
		t.Errorf("got present %v", *s.presence.pods.Load())
	}
	if reported != 2 {
		t.Errorf("with a new worker: got %d calls of PodGone, want 2", reported)
	}
	close(s.table.workers["old"].worker.released)
	s.publish()
	if s.Ending(name, "new") || reported != 3 {
		t.Errorf("after the end: got present %v, %d calls of PodGone, want 3", *s.presence.pods.Load(), reported)
	}
}
