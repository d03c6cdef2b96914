package agent

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/kube/storage"
	"github.com/nodelet/nodelet/kube/watch/apitest"
	"github.com/nodelet/nodelet/volumes"
)

// TestGate lets so many calls through at a time, in turn; one that takes too long gives its place up; one that waits in vain
// leaves.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(2, 2, gatePatience)
		var inside, most, done atomic.Int32
		for range 10 {
			go g.pass(t.Context(), func() error {
				most.Store(max(most.Load(), inside.Add(1)))
				time.Sleep(time.Second)
				inside.Add(-1)
				done.Add(1)
				return nil
			})
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if most.Load() != 2 || done.Load() != 10 {
			t.Errorf("%d at a time, %d done after 5 s", most.Load(), done.Load())
		}

		for range 2 {
			go g.pass(t.Context(), func() error { time.Sleep(time.Hour); return nil })
		}
		synctest.Wait()
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.pass(impatient, func() error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who waits in vain gets %v", err)
		}
		began := time.Now()
		failed := errors.New("failed")
		if err := g.pass(t.Context(), func() error { return failed }); err != failed || time.Since(began) != gatePatience-time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if g.inside != 0 || len(g.queue) != 0 {
			t.Errorf("%d places were never given back, %d wait", g.inside, len(g.queue))
		}
	})
}

// slowObjects answers after a while.
type slowObjects struct {
	Objects
	after time.Duration
}

func (o slowObjects) ConfigMap(context.Context, string, string) (*corev1.ConfigMap, error) {
	time.Sleep(o.after)
	return nil, errors.New("nothing")
}

// slowClaims are in an API server that answers after a while.
func slowClaims(t *testing.T, after time.Duration) *storage.Storage {
	server, api := apitest.New(t)
	server.Intercept(func(*http.Request) *apierrors.StatusError {
		time.Sleep(after)
		return apierrors.NewBadRequest("nothing")
	})
	s := storage.New(storage.Config{Core: api.Core, Storage: api.Storage, NodeName: "node"})
	t.Cleanup(s.Close)
	return s
}

// TestVolumesGoAhead: while a volume is being mounted fewer sandboxes are made at a time, but never none, and a sandbox that takes
// too long does not count; nor does a volume.
func TestVolumesGoAhead(t *testing.T) {
	content := corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named("c")}}
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
	for name, c := range map[string]struct {
		volume corev1.VolumeSource
		after  time.Duration
		want   []time.Duration // when sandboxes are begun
	}{
		"content":               {content, time.Second, []time.Duration{0, time.Second, time.Second, gatePatience}},
		"content that is stuck": {content, time.Hour, []time.Duration{0, gatePatience, 2 * gatePatience, aheadPatience}},
		"claim":                 {claim, claimPatience / 2, []time.Duration{0, claimPatience / 2, claimPatience / 2, gatePatience}},
		"claim that is stuck":   {claim, time.Hour, []time.Duration{0, claimPatience, claimPatience, gatePatience}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid"},
					Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: c.volume}}}}
				hands := &Hands{Volumes: &volumes.Volumes{}, Node: func() *spec.Node { return &spec.Node{} },
					Objects: func(*corev1.Pod) Objects { return slowObjects{after: c.after} },
					Storage: slowClaims(t, c.after), CSI: &csi.CSI{}}
				mount := &task{hands: hands, gates: &gates{create: newGate(3, 1, gatePatience)}, pod: pod, step: plan.Mount{Volume: "v"}}
				began := time.Now()
				go mount.execute(t.Context())
				synctest.Wait()
				begun := make([]time.Duration, len(c.want))
				for i := range begun {
					go mount.gates.create.pass(t.Context(), func() error {
						begun[i] = time.Since(began)
						time.Sleep(time.Hour)
						return nil
					})
					synctest.Wait()
				}
				time.Sleep(2 * time.Hour)
				synctest.Wait()
				if !slices.Equal(begun, c.want) {
					t.Errorf("sandboxes are begun after %v, want %v", begun, c.want)
				}
			})
		})
	}
}
