package status

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// randomStatuses sets random statuses of pods while requests are slow, fail, or are answered after the work was done,
// and other writers change conditions of their own. At the end, when all is well again, each pod must hold what was set
// last, and what others wrote.
func randomStatuses(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 7))
	b := newBench(t, 1+r.IntN(4))
	faults := newFaults(seed)
	b.api.before = faults.before
	b.run(t)
	var pods []*corev1.Pod
	for i := range 3 {
		pods = append(pods, b.api.add(testPod(fmt.Sprint("p", i))))
	}
	last := map[string]corev1.PodStatus{}
	for step := range 60 {
		i := r.IntN(len(pods))
		name := pods[i].Name
		switch r.IntN(4) {
		case 0: // the watch catches up
			pods[i] = b.api.get("ns", name)
		case 1: // another writer
			other := b.api.get("ns", name)
			set(&other.Status, corev1.PodCondition{
				Type:    "example.com/gate",
				Status:  corev1.ConditionTrue,
				Message: fmt.Sprint(step),
			})
			b.api.add(other)
		}
		s := running(pods[i], r.IntN(2) == 0)
		s.Message = fmt.Sprint("m", r.IntN(3))
		last[name] = s
		b.p.Set(pods[i], s)
		time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
	}
	faults.end()
	time.Sleep(2 * time.Minute)
	// The watch shows what is there now; a lost answer may have left an older status.
	for i := range pods {
		pods[i] = b.api.get("ns", pods[i].Name)
		if want, ok := last[pods[i].Name]; ok {
			b.p.Set(pods[i], want)
		}
	}
	time.Sleep(2 * time.Minute)
	synctest.Wait()
	for i := range pods {
		got, want := b.api.get("ns", pods[i].Name), last[pods[i].Name]
		if want.Phase == "" {
			continue
		}
		if got.Status.Message != want.Message || isReady(&got.Status) != isReady(&want) {
			t.Fatalf("seed %d: %s: got %q ready=%v, want %q ready=%v", seed, got.Name, got.Status.Message,
				isReady(&got.Status), want.Message, isReady(&want))
		}
		gate, before := podutil.Condition(got.Status.Conditions,
			"example.com/gate"), podutil.Condition(pods[i].Status.Conditions, "example.com/gate")
		if before != nil && (gate == nil || gate.Message != before.Message) {
			t.Fatalf("seed %d: another writer's condition: got %+v, want it unchanged", seed, gate)
		}
	}
}

type faults struct {
	mu   sync.Mutex
	r    *rand.Rand
	over bool
}

func newFaults(seed uint64) *faults { return &faults{r: rand.New(rand.NewPCG(seed, 8))} }

func (f *faults) end() {
	f.mu.Lock()
	f.over = true
	f.mu.Unlock()
}

func (f *faults) before(verb, path string) error {
	f.mu.Lock()
	over, kind := f.over, f.r.IntN(8)
	delay := time.Duration(f.r.IntN(400)) * time.Millisecond
	f.mu.Unlock()
	if over {
		return nil
	}
	time.Sleep(delay)
	switch kind {
	case 0:
		return errors.New("connection reset")
	case 1:
		return apierrors.NewInternalError(errors.New("etcd"))
	case 2:
		return apierrors.NewTooManyRequests("slow down", 1)
	case 3:
		return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, strings.Split(path, "/")[6], errors.New("no"))
	}
	return nil
}
