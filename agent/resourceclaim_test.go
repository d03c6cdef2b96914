package agent_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent"
)

// claimBook prepares resource claims. Its state survives a restart of the agent.
type claimBook struct {
	mu      sync.Mutex
	held    map[types.UID]bool
	asked   []string
	failure error
}

func (b *claimBook) act(what string, pod types.UID, held bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = append(b.asked, what)
	if b.failure == nil {
		b.held[pod] = held
	}
	return b.failure
}

func (b *claimBook) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failure = err
}

func (b *claimBook) Prepare(_ context.Context, pod *corev1.Pod) error {
	return b.act("prepare", pod.UID, true)
}

func (b *claimBook) Unprepare(_ context.Context, pod types.UID) error {
	return b.act("unprepare", pod, false)
}

func (b *claimBook) Holds(pod types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held[pod]
}

func (b *claimBook) Pods() (all []types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for uid, held := range b.held {
		if held {
			all = append(all, uid)
		}
	}
	return all
}

func (b *claimBook) Health(*corev1.Pod) map[string][]corev1.ResourceStatus { return nil }

func (b *claimBook) Devices(*corev1.Pod, *corev1.Container) ([]string, error) {
	return []string{"x.com/y=1"}, nil
}

func (b *claimBook) checkAsked(t *testing.T, want ...string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.asked, want) {
		t.Errorf("asked %q, want %q", b.asked, want)
	}
	b.asked = nil
}

func withClaim(pod *corev1.Pod) {
	name := "gpu"
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: name, ResourceClaimName: &name}}
}

// inClaimWorld runs a test on a node that has resource claims prepared.
func inClaimWorld(t *testing.T, test func(t *testing.T, w *world, b *claimBook)) {
	inWorld(t, func(t *testing.T, w *world) {
		b := &claimBook{held: map[types.UID]bool{}}
		w.end()
		w.claims = b
		w.begin()
		test(t, w, b)
	})
}

// TestResourceClaims checks that a pod waits for its claims, says so in the kubelet's words and in its explanation,
// and runs with their devices; it is called ended when they are given back.
func TestResourceClaims(t *testing.T) {
	inClaimWorld(t, func(t *testing.T, w *world, b *claimBook) {
		pod := apiPod("web", withClaim)
		b.fail(errors.New("DRA driver d is not registered"))
		w.run(pod)
		w.sleep(time.Millisecond)
		w.checkRunning()
		if events := w.eventsWith("FailedPrepareDynamicResources"); len(events) != 1 ||
			!strings.Contains(events[0], "Failed to prepare dynamic resources: DRA driver d") {
			t.Errorf("events: got %q", events)
		}
		if waits := w.waits(pod); !slices.ContainsFunc(waits,
			func(x agent.Wait) bool { return strings.Contains(x.For+x.Why, "prepare resource claims") }) {
			t.Errorf("the pod waits for %+v, want a wait for its resource claims", waits)
		}
		b.fail(nil)
		w.agent.ObjectsChanged([]types.UID{pod.UID}) // its driver has registered
		w.sleep(time.Millisecond)
		w.checkRunning("web/app#0")
		b.checkAsked(t, "prepare", "prepare")
		b.fail(errors.New("DRA driver d is not registered"))
		w.delete(pod, time.Second)
		w.sleep(10 * time.Second)
		w.checkRunning()
		if st := w.status(pod); st.Phase != corev1.PodRunning {
			t.Errorf("phase while the claims are prepared: got %s, want Running", st.Phase)
		}
		b.fail(nil)
		w.sleep(time.Minute)
		w.checkNothingLeft()
	})
}

// TestResourceClaimsAfterRestart checks that the next run of the agent uses the prepared claims, and unprepares those
// that no pod needs any more, also if nothing else of the pod is left.
func TestResourceClaimsAfterRestart(t *testing.T) {
	inClaimWorld(t, func(t *testing.T, w *world, b *claimBook) {
		pod := apiPod("web", withClaim)
		w.run(pod)
		w.sleep(time.Second)
		w.restart()
		w.sleep(time.Second)
		w.checkRunning("web/app#0")
		b.checkAsked(t, "prepare")
		w.end()
		b.held = map[types.UID]bool{"gone": true} // what was noted of the pod is lost
		w.begin()
		w.sleep(time.Minute)
		w.checkRunning("web/app#0")
		slices.Sort(b.asked)
		b.checkAsked(t, "prepare", "unprepare")
		if pods := b.Pods(); !slices.Equal(pods, []types.UID{pod.UID}) {
			t.Errorf("pods with claims: got %q, want %q", pods, pod.UID)
		}
	})
}
