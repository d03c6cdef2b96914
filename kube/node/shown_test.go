package node

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestShownReady checks which Ready condition people see while the API server refuses requests. The one that is sent
// stays the agent's own.
func TestShownReady(t *testing.T) {
	for name, c := range map[string]struct {
		node     *corev1.Node // of the API server before the start
		accepted bool         // whether the API server accepts a status first
		refused  func(*http.Request) bool
		after    time.Duration
		want     corev1.ConditionStatus
		message  []string
	}{
		"nothing is accepted": {
			refused: func(*http.Request) bool { return true },
			after:   10 * time.Minute,
			want:    corev1.ConditionUnknown,
			message: []string{"has not accepted a status", "create node", "the agent itself: True"},
		},
		"the kubelet's Ready": {
			node:    existing(corev1.ConditionTrue),
			refused: func(r *http.Request) bool { return r.Method == http.MethodPatch },
			after:   time.Minute,
			want:    corev1.ConditionUnknown,
			message: []string{"has not accepted a status", "patch node status", "the agent itself: True"},
		},
		"a short failure": {
			accepted: true,
			refused:  func(*http.Request) bool { return true },
			after:    30 * time.Second,
			want:     corev1.ConditionTrue,
		},
		"only the lease is refused": {
			accepted: true,
			refused:  func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/leases") },
			after:    time.Minute,
			want:     corev1.ConditionUnknown,
			message:  []string{"has not accepted a status or lease since 2000-01-01T00:0", "update lease", "itself: True"},
		},
		"a failure that ends": {
			accepted: true,
			refused:  func(*http.Request) bool { return time.Since(bubbleStart) < 8*time.Minute },
			after:    9 * time.Minute,
			want:     corev1.ConditionTrue,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				refuse := atomic.Bool{}
				refuse.Store(!c.accepted)
				api := &fakeAPI{node: c.node, before: func(r *http.Request) error {
					if refuse.Load() && c.refused(r) {
						return apierrors.NewUnauthorized("no")
					}
					return nil
				}}
				b := start(t, api, nil)
				run := func(d time.Duration) {
					for range int(d / (10 * time.Second)) {
						b.setRuntime(readyRuntime)
						settle(10 * time.Second)
					}
				}
				run(time.Minute)
				refuse.Store(true)
				run(c.after)
				n := b.Reporter.Shown()
				got := find(n.Status.Conditions, corev1.NodeReady)
				if got.Status != c.want {
					t.Errorf("Ready is shown as %s (%s), want %s", got.Status, got.Message, c.want)
				}
				for _, part := range c.message {
					if !strings.Contains(got.Message, part) {
						t.Errorf("Ready is shown with the message %q, want %q in it", got.Message, part)
					}
				}
				if got := find(b.Node().Status.Conditions, corev1.NodeReady).Status; got != corev1.ConditionTrue {
					t.Errorf("the agent's own Ready: got %s, want True", got)
				}
			})
		})
	}
}

// bubbleStart is the time at which a synctest bubble starts.
var bubbleStart = time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC)

// TestShownWithoutCluster checks that a node without an API server shows the agent's own condition.
func TestShownWithoutCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := New(testConfig(t), nil, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.setRuntime(readyRuntime)
		r.updateLocal(t.Context(), time.Now())
		if got := find(r.Shown().Status.Conditions, corev1.NodeReady).Status; got != corev1.ConditionTrue {
			t.Errorf("Ready is shown as %s, want True", got)
		}
	})
}

// TestRevertedChange checks that a status is sent after a refusal, also if the change that was refused has reverted
// since: only then is it known that the API server accepts statuses again.
func TestRevertedChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuse := atomic.Bool{}
		api := &fakeAPI{before: func(r *http.Request) error {
			if r.Method == http.MethodPatch && refuse.Load() {
				return apierrors.NewUnauthorized("no")
			}
			return nil
		}}
		b := start(t, api, nil)
		b.setRuntime(readyRuntime)
		b.SetPressure(pressure())
		settle(10 * time.Second)
		refuse.Store(true)
		b.SetPressure(pressure(corev1.NodeDiskPressure))
		settle(time.Second)
		b.SetPressure(pressure())
		refuse.Store(false)
		for range 6 {
			b.setRuntime(readyRuntime)
			settle(10 * time.Second)
		}
		if c := find(b.Reporter.Shown().Status.Conditions, corev1.NodeReady); c.Status != corev1.ConditionTrue {
			t.Errorf("Ready is shown as %s (%s), want True", c.Status, c.Message)
		}
	})
}
