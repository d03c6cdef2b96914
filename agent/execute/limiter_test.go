package execute

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/volumes"
)

// TestGate lets so many calls through at a time, in turn; one that takes too long gives its place up; one that waits
// in vain leaves.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newLimiter(2, 2, callCounts)
		var inside, most, done atomic.Int32
		for range 10 {
			go g.do(t.Context(), func() error {
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
			t.Errorf("got %d calls at a time and %d done after 5 s, want 2 and 10", most.Load(), done.Load())
		}

		for range 2 {
			go g.do(t.Context(), func() error { time.Sleep(time.Hour); return nil })
		}
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.do(short, func() error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller that gives up: got %v, want context.DeadlineExceeded", err)
		}
		began := time.Now()
		failed := errors.New("failed")
		if err := g.do(t.Context(), func() error { return failed }); err != failed ||
			time.Since(began) != callCounts-time.Second {
			t.Errorf("got %v after %v, want %v after %v", err, time.Since(began), failed, callCounts-time.Second)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if g.inside != 0 || len(g.queue) != 0 {
			t.Errorf("in the end: got %d places in use and %d callers in the queue, want none", g.inside, len(g.queue))
		}
	})
}

// slowVolumes mounts nothing, and takes its time.
type slowVolumes struct {
	Volumes
	after time.Duration
}

func (v slowVolumes) Mount(context.Context, volumes.Request, volumes.Objects) (volumes.Mounted, error) {
	time.Sleep(v.after)
	return volumes.Mounted{}, errors.New("nothing")
}

// TestVolumesGoAhead checks that while a volume is being mounted fewer sandboxes are made at a time, but never none,
// and a sandbox that takes too long does not count; nor does a volume.
func TestVolumesGoAhead(t *testing.T) {
	content := corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named("c")}}
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
	for name, c := range map[string]struct {
		volume corev1.VolumeSource
		after  time.Duration
		want   []time.Duration // when sandboxes are begun
	}{
		"content":               {content, time.Second, []time.Duration{0, time.Second, time.Second, callCounts}},
		"content that is stuck": {content, time.Hour, []time.Duration{0, callCounts, 2 * callCounts, volumeCounts}},
		"claim": {claim, externalVolumeCounts / 2,
			[]time.Duration{0, externalVolumeCounts / 2, externalVolumeCounts / 2, callCounts}},
		"claim that is stuck": {claim, time.Hour, []time.Duration{0, externalVolumeCounts, externalVolumeCounts, callCounts}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid"},
					Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: c.volume}}}}
				limits := &limiters{create: newLimiter(3, 1, callCounts), publish: newLimiter(1, 1, callCounts)}
				x := &mounts{&Backends{
					Volumes: slowVolumes{after: c.after},
					Objects: func(*corev1.Pod) Objects { return nil },
					Node:    func() *spec.Node { return &spec.Node{} },
				}, limits}
				began := time.Now()
				go x.mount(t.Context(), &Task{Pod: pod}, podstate.Mount{Volume: "v"})
				synctest.Wait()
				begun := make([]time.Duration, len(c.want))
				for i := range begun {
					go limits.create.do(t.Context(), func() error {
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
