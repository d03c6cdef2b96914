package agent

import (
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/allocation"
	"github.com/nodelet/nodelet/agent/placement/state"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
)

// noFiles is a node whose pods have no directories.
type noFiles struct{ PodFiles }

func (noFiles) WritePodFile(types.UID, string, []byte) error { return nil }

func (noFiles) ReadPodFile(types.UID, string) ([]byte, error) { return nil, os.ErrNotExist }

func (noFiles) Load() (map[types.UID]state.PodResources, error) { return nil, nil }

func (noFiles) Save(map[types.UID]state.PodResources) error { return nil }

// noEvents records nothing.
type noEvents struct{}

func (noEvents) PodEvent(*corev1.Pod, string, string, string, string) {}

// limited returns a pod of a generation with a memory limit.
func limited(generation int64, memory string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: "u", Generation: generation},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "app",
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"memory": resource.MustParse("1Mi")},
				Limits:   corev1.ResourceList{"memory": resource.MustParse(memory)},
			},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

// dispatcherFor returns a dispatcher without pods on a node without a disk, apart from the kubelet's file.
func dispatcherFor(file allocation.AllocatedPods) *dispatcher {
	node := &spec.Node{Allocatable: corev1.ResourceList{
		"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi"), "pods": resource.MustParse("10"),
	}}
	cfg := Config{
		Backends:  Backends{PodFiles: noFiles{}, Events: noEvents{}, AllocatedPods: file},
		Log:       discard(),
		Node:      func() *spec.Node { return node },
		Rejection: func(*corev1.Pod) *podstate.Rejection { return nil },
	}.complete()
	d := &dispatcher{cfg: cfg, table: newTable(cfg.PodFiles)}
	d.allocations = allocation.NewStore(cfg.PodFiles, file, d.table.gone, cfg.Log)
	return d
}

// add gives a pod a worker that does not run.
func (d *dispatcher) add(pod *corev1.Pod) *entry {
	e := &entry{source: pod, worker: newWorker(d.cfg, runtimeFacts{}, func() {})}
	d.allocate(e, pod)
	d.table.workers[pod.UID] = e
	return e
}

// TestNoOrderBeforeAResizeIsDecided checks that a worker never gets the generation of a resize together with the old
// resources and without a decision: it would publish that nothing is in progress.
func TestNoOrderBeforeAResizeIsDecided(t *testing.T) {
	d := dispatcherFor(noFiles{})
	before, after := limited(1, "2Mi"), limited(2, "4Mi") // the limit alone changes
	e := d.add(before)
	d.update(e, after)
	select {
	case o := <-e.worker.inbox:
		t.Fatalf("got an order of generation %d with the resources of generation %d, want none yet",
			o.Pod.Generation, o.Allocation.Generation)
	default:
	}
	d.evaluateResizes()
	select {
	case o := <-e.worker.inbox:
		if got := o.Pod.Spec.Containers[0].Resources.Limits.Memory().String(); o.Allocation.Generation != 2 || got != "4Mi" {
			t.Errorf("got the limit %s of generation %d, want 4Mi of 2", got, o.Allocation.Generation)
		}
	default:
		t.Error("got no order after the decision, want one")
	}
}

// disk counts the writes of the kubelet's file.
type disk struct {
	noFiles
	saves  int
	saving func() // called at each write
}

func (d *disk) Save(map[types.UID]state.PodResources) error {
	d.saves++
	d.saving()
	return nil
}

// TestOneWriteForAllResizes checks that the file is written once for all resizes that are decided together, and before
// a worker learns of its own.
func TestOneWriteForAllResizes(t *testing.T) {
	file := &disk{}
	d := dispatcherFor(file)
	var entries []*entry
	for _, uid := range []types.UID{"a", "b", "c"} {
		before, after := limited(1, "2Mi"), limited(2, "4Mi")
		before.UID, after.UID = uid, uid
		e := d.add(before)
		d.update(e, after)
		entries = append(entries, e)
	}
	ordered := func() (n int) {
		for _, e := range entries {
			n += len(e.worker.inbox)
		}
		return n
	}
	file.saving = func() {
		if n := ordered(); n > 0 {
			t.Errorf("got %d orders before the write, want none", n)
		}
	}
	d.evaluateResizes()
	if n := ordered(); file.saves != 1 || n != len(entries) {
		t.Errorf("got %d writes and %d orders, want 1 and %d", file.saves, n, len(entries))
	}
}
