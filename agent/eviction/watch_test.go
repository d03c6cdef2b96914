package eviction

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/eviction/policy"
)

// world is a node with one pod, without images, that records what is evicted and reported.
type world struct {
	pod     *corev1.Pod
	evicted []types.UID
	// holds: what is evicted for its own excess does not release its resources.
	holds bool
	// pressure is what the node runs short of.
	pressure policy.Pressure
}

func (w *world) Active(context.Context) []*corev1.Pod                 { return []*corev1.Pod{w.pod} }
func (w *world) Staying(context.Context, time.Duration) []*corev1.Pod { return []*corev1.Pod{w.pod} }
func (w *world) RemoveEnded(context.Context)                          {}
func (w *world) RemoveUnused(context.Context) error                   { return nil }
func (w *world) SetPressure(p map[corev1.NodeConditionType]bool)      { w.pressure = p }
func (w *world) NodeEvent(string, string, string)                     {}
func (w *world) Evicted(string)                                       {}
func (w *world) AnnotatedPodEvent(*corev1.Pod, string, string, string, map[string]string) {
}

func (w *world) Evict(_ context.Context, pod types.UID, ev agent.Eviction) <-chan struct{} {
	w.evicted = append(w.evicted, pod)
	released := make(chan struct{})
	if !ev.Own || !w.holds {
		close(released)
	}
	return released
}

// TestUnknownUseEvictsNobody checks that no pod is evicted for a full disk while the runtime does not say what the pods
// use there, as with the kubelet, and that one is as soon as it does.
func TestUnknownUseEvictsNobody(t *testing.T) {
	root := t.TempDir()
	runtime := &runtimeStub{dir: root, err: errors.New("container not found")}
	w := &world{pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u1"}}}
	w.pod.Spec.Containers = []corev1.Container{{Name: "app"}}
	all := resource.MustParse("4Ei")
	e := New(Config{
		Thresholds: []policy.Threshold{{Signal: policy.NodeFSAvailable, Value: policy.Amount{Quantity: &all}}},
		Pods:       w,
		Node:       machineWith(t, root, runtime),
		Images:     w,
		Reporter:   w,
		Log:        slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if _, evicted := e.watches[0].look(t.Context()); evicted || len(w.evicted) > 0 {
		t.Errorf("without an answer of the runtime: got %v evicted, want none", w.evicted)
	}
	runtime.err = nil
	if _, evicted := e.watches[0].look(t.Context()); !evicted || len(w.evicted) != 1 {
		t.Errorf("with an answer of the runtime: got %v evicted, want the pod", w.evicted)
	}
}

// slowNode is a node whose disk recovers while it measures what the pods use.
type slowNode struct {
	Node
	recovered bool
}

func (n *slowNode) DiskLevels(context.Context) (map[string]policy.Level, bool) {
	level := policy.Level{Available: 1, Capacity: 100}
	if n.recovered {
		level.Available = 50
	}
	return map[string]policy.Level{policy.NodeFSAvailable: level}, true
}

func (n *slowNode) Use(_ context.Context, _ string, pods []*corev1.Pod) []policy.Pod {
	n.recovered = true
	return []policy.Pod{{Pod: pods[0], Usage: policy.Usage{Known: true, Disk: 5}}}
}

func (n *slowNode) RuntimeAnswered(time.Time) bool { return true }

func (n *slowNode) Frees(context.Context, string) bool { return false }

func (n *slowNode) Containers(context.Context, string, *corev1.Pod) map[string]int64 { return nil }

// fullNode is a node whose disk stays full, and whose pods exceed their limits.
type fullNode struct{ slowNode }

func (n *fullNode) Use(_ context.Context, _ string, pods []*corev1.Pod) []policy.Pod {
	return []policy.Pod{{Pod: pods[0], Usage: policy.Usage{Known: true, Disk: 5}}}
}

func (n *fullNode) Storage(_ context.Context, pods []*corev1.Pod) []policy.Storage {
	return []policy.Storage{{Pod: 1 << 30}}
}

// TestExcessIsAwaited checks that no pod is evicted for a full disk while another that has exceeded its own limits
// releases its files, for up to 30 seconds.
func TestExcessIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		greedy := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "greedy", UID: "u1"}}
		greedy.Spec.Containers = []corev1.Container{{Name: "app", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Mi")}}}}
		w := &world{pod: greedy, holds: true}
		e := New(Config{
			Thresholds: []policy.Threshold{{Signal: policy.NodeFSAvailable, Value: policy.Amount{Percentage: 10}}},
			Pods:       w,
			Node:       &fullNode{},
			Images:     w,
			Reporter:   w,
			Log:        slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
		e.enforceLimits(t.Context())
		if len(w.evicted) != 1 {
			t.Fatalf("got %v evicted for its excess, want the greedy pod", w.evicted)
		}
		w.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "modest", UID: "u2"}}
		w.pod.Spec.Containers = []corev1.Container{{Name: "app"}}
		if _, evicted := e.watches[0].look(t.Context()); evicted {
			t.Errorf("got %v evicted while the greedy pod releases its files, want it alone", w.evicted)
		}
		time.Sleep(releaseTimeout + time.Second)
		if _, evicted := e.watches[0].look(t.Context()); !evicted {
			t.Error("got no pod evicted after the time for a release, want the modest one")
		}
	})
}

// TestRecoveryMeanwhileEvictsNobody checks that no pod is evicted for a disk that recovers while the agent measures
// what the pods use.
func TestRecoveryMeanwhileEvictsNobody(t *testing.T) {
	w := &world{pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u1"}}}
	w.pod.Spec.Containers = []corev1.Container{{Name: "app"}}
	tenth := policy.Amount{Percentage: 10}
	e := New(Config{
		Thresholds: []policy.Threshold{{Signal: policy.NodeFSAvailable, Value: tenth}},
		Pods:       w,
		Node:       &slowNode{},
		Images:     w,
		Reporter:   w,
		Log:        slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if _, evicted := e.watches[0].look(t.Context()); evicted || len(w.evicted) > 0 {
		t.Errorf("got %v evicted, want none", w.evicted)
	}
}

// TestLateRuntimeKeepsPressure checks that the disks count as evaluated only when the runtime has said where its files
// are: until then the condition of the node stays as it was before the start of the agent. Pressure that is found is
// reported at once.
func TestLateRuntimeKeepsPressure(t *testing.T) {
	root := t.TempDir()
	for name, c := range map[string]struct {
		threshold    string
		under, known bool // without an answer of the runtime
	}{
		"space on the node's disk":    {threshold: "1"},
		"no space on the node's disk": {threshold: "4Ei", under: true, known: true},
	} {
		runtime, w := &runtimeStub{}, &world{pod: &corev1.Pod{}}
		value := resource.MustParse(c.threshold)
		e := New(Config{
			Thresholds: []policy.Threshold{
				{Signal: policy.NodeFSAvailable, Value: policy.Amount{Quantity: &value}},
				{Signal: policy.ImageFSAvailable, Value: policy.Amount{Quantity: &value}},
			},
			Pods:     w,
			Node:     machineWith(t, root, runtime),
			Images:   w,
			Reporter: w,
			Log:      slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
		e.watches[0].look(t.Context())
		if under, known := w.pressure[corev1.NodeDiskPressure]; under != c.under || known != c.known {
			t.Errorf("%s, silent runtime: got pressure=%t known=%t, want %t, %t", name, under, known, c.under, c.known)
		}
		runtime.dir = root
		e.watches[0].look(t.Context())
		if under, known := w.pressure[corev1.NodeDiskPressure]; under != c.under || !known {
			t.Errorf("%s: got pressure=%t known=%t, want %t, true", name, under, known, c.under)
		}
	}
}
