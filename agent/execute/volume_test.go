package execute

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/internal/limiter"
	"github.com/nodelet/nodelet/volumes"
)

// TestUnstarted checks that volumes hear whether the pod has a container: without one, a kubelet that this agent
// replaced may not have ended its work on them.
func TestUnstarted(t *testing.T) {
	x := &mounts{
		Backends: &Backends{Node: func() *spec.Node { return &spec.Node{} }},
		limiters: newLimiters(),
	}
	for containers, want := range map[int]bool{0: true, 1: false} {
		task := &Task{Pod: &corev1.Pod{}, Instances: make([]podstate.Container, containers)}
		if got := x.request(task, &corev1.Volume{}, nil).Unstarted; got != want {
			t.Errorf("%d containers: got unstarted %t, want %t", containers, got, want)
		}
	}
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
		"content":               {content, time.Second, []time.Duration{0, time.Second, time.Second, callCountFor}},
		"content that is stuck": {content, time.Hour, []time.Duration{0, callCountFor, 2 * callCountFor, volumeCountFor}},
		"claim": {claim, externalVolumeCountFor / 2,
			[]time.Duration{0, externalVolumeCountFor / 2, externalVolumeCountFor / 2, callCountFor}},
		"claim that is stuck": {claim, time.Hour,
			[]time.Duration{0, externalVolumeCountFor, externalVolumeCountFor, callCountFor}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid"},
					Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: c.volume}}}}
				limits := &limiters{create: limiter.New(3, 1, callCountFor), publish: limiter.New(1, 1, callCountFor)}
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
					go limits.create.Do(t.Context(), func() error {
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
