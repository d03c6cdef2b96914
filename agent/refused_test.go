package agent_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/placement"
	"github.com/nodelet/nodelet/agent/placement/numa"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/test/placementtest"
)

// scarce is a node on which, while taken is set, no pod can have what it requests for itself.
type scarce struct {
	*placement.Manager
	taken *atomic.Bool
}

func (s scarce) Admit(pod *corev1.Pod) (func() error, map[string]numa.Mask, *podstate.Rejection) {
	return nil, nil, s.Rejection(pod)
}

func (s scarce) Rejection(*corev1.Pod) *podstate.Rejection {
	if !s.taken.Load() {
		return nil
	}
	return &podstate.Rejection{Reason: "UnexpectedAdmissionError", Message: "not enough cpus available to satisfy request"}
}

func (s scarce) Fits(*corev1.Pod) bool { return !s.taken.Load() }

// scarceDevices has devices for pods that request one unless taken is set.
type scarceDevices struct {
	slowDevices
	taken *atomic.Bool
}

func (d *scarceDevices) Reserve(pod *corev1.Pod, _ func(string, int64) bool) (func(context.Context) error, error) {
	return nil, d.Rejection(pod)
}

func (d *scarceDevices) Rejection(*corev1.Pod) error {
	if !d.taken.Load() {
		return nil
	}
	return errors.New("requested number of devices unavailable")
}

// TestStaticPodWaitsForWhatIsTaken checks that a static pod that was refused because CPUs or devices of its own were
// taken is refused once, and runs when it can have them.
func TestStaticPodWaitsForWhatIsTaken(t *testing.T) {
	for name, use := range map[string]func(w *world, taken *atomic.Bool){
		"CPUs":    func(w *world, taken *atomic.Bool) { w.placement = scarce{placementtest.Off(), taken} },
		"devices": func(w *world, taken *atomic.Bool) { w.devices = &scarceDevices{taken: taken} },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				var taken atomic.Bool
				taken.Store(true)
				use(w, &taken)
				w.restart()
				w.run(staticPod("etcd", "0123"))
				w.sleep(anHour)
				w.checkRunning()
				if n := len(w.eventsWith("UnexpectedAdmissionError")); n != 1 {
					t.Errorf("got %d events about the refusal, want 1", n)
				}
				taken.Store(false)
				w.sleep(2 * time.Minute)
				w.checkRunning("etcd/app#0")
			})
		})
	}
}

// failing is a node on which, while broken is set, it cannot be recorded what a pod has for itself.
type failing struct {
	*placement.Manager
	broken *atomic.Bool
}

func (f failing) Admit(*corev1.Pod) (func() error, map[string]numa.Mask, *podstate.Rejection) {
	return func() error {
		if f.broken.Load() {
			return errors.New("the disk is full")
		}
		return nil
	}, nil, nil
}

// TestStaticPodAfterFullDisk checks that a static pod is tried again, but not all the time, if it was refused because a
// record could not be written.
func TestStaticPodAfterFullDisk(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var broken atomic.Bool
		broken.Store(true)
		w.placement = failing{placementtest.Off(), &broken}
		w.restart()
		w.run(staticPod("etcd", "0123"))
		w.sleep(10 * time.Minute)
		w.checkRunning()
		if n := len(w.eventsWith("UnexpectedAdmissionError")); n < 5 || n > 11 {
			t.Errorf("got %d attempts in ten minutes, want one every one or two minutes", n)
		}
		broken.Store(false)
		w.sleep(3 * time.Minute)
		w.checkRunning("etcd/app#0")
	})
}
