package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/placement"
	"github.com/nodelet/nodelet/agent/placement/numa"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/test/cri/fake"
	"github.com/nodelet/nodelet/test/placementtest"
)

// slowDevices is a device plugin's side of the agent: the plugin answers when the test says so.
type slowDevices struct {
	answers chan error
	// away: pods that an earlier run of the agent has admitted wait for an answer too.
	away bool
	// asked are the pods for which devices were reserved, givenUp those that ended before the plugin answered, released
	// those of which the devices were taken back, ended those of asked that had ended when another pod was decided about.
	asked, givenUp, released, ended []types.UID
}

func (d *slowDevices) Reserve(pod *corev1.Pod, _ func(string, int64) bool) (func(context.Context) error, error) {
	if _, asks := pod.Spec.Containers[0].Resources.Limits[deviceName]; !asks {
		return nil, nil
	}
	d.asked = append(d.asked, pod.UID)
	return d.await(pod.UID), nil
}

func (d *slowDevices) await(pod types.UID) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case err := <-d.answers:
			return err
		case <-ctx.Done():
			d.givenUp = append(d.givenUp, pod)
			return ctx.Err()
		}
	}
}

func (d *slowDevices) ReleaseEnded(ended func(types.UID) bool) {
	d.ended = slices.DeleteFunc(slices.Clone(d.asked), func(pod types.UID) bool { return !ended(pod) })
}

func (d *slowDevices) Rejection(*corev1.Pod) error { return nil }

func (d *slowDevices) Container(context.Context, *corev1.Pod,
	*corev1.Container) (*deviceplugin.ContainerAllocateResponse, error) {
	return nil, nil
}

func (d *slowDevices) Resume(pod *corev1.Pod) func(context.Context) error {
	if !d.away {
		return nil
	}
	return d.await(pod.UID)
}

func (d *slowDevices) Release(pod types.UID) { d.released = append(d.released, pod) }

// endings is the placement's side of the agent, and has the end of a pod when another pod was decided about.
type endings struct {
	*placement.Manager
	pod   types.UID
	ended bool
}

func (e *endings) ReleaseEnded(ended func(types.UID) bool) { e.ended = ended(e.pod) }

// TestEndedPodGivesBack checks that devices, CPUs and memory of a pod are taken back for the next pod if the first has
// ended, and not before.
func TestEndedPodGivesBack(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{RunsFor: 5 * time.Second})
		job := apiPod("job", withDevice, withRestart(corev1.RestartPolicyNever))
		d, p := &slowDevices{answers: make(chan error, 1)}, &endings{Manager: placementtest.Off(), pod: job.UID}
		d.answers <- nil
		w.devices, w.placement = d, p
		w.restart()
		w.run(job)
		for _, end := range []bool{false, true} {
			w.sleep(4 * time.Second)
			w.run(apiPod(fmt.Sprintf("next-%t", end)))
			w.sleep(time.Second)
			if got := slices.Contains(d.ended, job.UID); got != end || p.ended != end {
				t.Errorf("got devices taken back: %t, CPUs and memory: %t; want %t", got, p.ended, end)
			}
		}
	})
}

// unrecorded places each pod but cannot record that.
type unrecorded struct{ *placement.Manager }

func (unrecorded) Admit(*corev1.Pod) (func() error, map[string]numa.Mask, *podstate.Rejection) {
	return func() error { return errors.New("the disk is full") }, nil, nil
}

// TestUnrecordedCPUs checks that a pod that is refused because its CPUs cannot be recorded leaves its devices to other
// pods.
func TestUnrecordedCPUs(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		d := &slowDevices{}
		w.devices, w.placement = d, unrecorded{placementtest.Off()}
		w.restart()
		pod := apiPod("web", withDevice)
		w.run(pod)
		w.sleep(time.Second)
		w.checkWithoutDevices(pod, "Allocate failed due to the disk is full, which is unexpected")
		if len(d.asked) != 1 || !slices.Equal(d.released, d.asked) {
			t.Errorf("got devices of %v reserved and of %v taken back, want one pod, the same", d.asked, d.released)
		}
	})
}

// slowDisk places each pod, and cannot record that, but only says so when the test lets it.
type slowDisk struct {
	*placement.Manager
	full chan struct{}
}

func (s slowDisk) Admit(*corev1.Pod) (func() error, map[string]numa.Mask, *podstate.Rejection) {
	return func() error { <-s.full; return errors.New("the disk is full") }, nil, nil
}

// TestDevicesOfDeletedUnrecorded checks that the reservation of a pod ends that is deleted before its CPUs turn out to
// be impossible to record.
func TestDevicesOfDeletedUnrecorded(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		d, disk := &slowDevices{}, slowDisk{placementtest.Off(), make(chan struct{})}
		w.devices, w.placement = d, disk
		w.restart()
		pod := apiPod("web", withDevice)
		w.run(pod)
		w.sleep(time.Second)
		w.delete(pod, 0)
		w.sleep(time.Second)
		close(disk.full)
		w.sleep(time.Second)
		if len(d.asked) != 1 || !slices.Equal(d.givenUp, d.asked) {
			t.Errorf("got devices of %v reserved and given up by %v, want one pod, the same", d.asked, d.givenUp)
		}
	})
}

// TestDevicesOfDeletedPreemptor checks that the devices of a critical pod are reserved while other pods end for it, and
// that the reservation ends if the pod is deleted meanwhile.
func TestDevicesOfDeletedPreemptor(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{TermTakes: 10 * time.Second})
		d := &slowDevices{answers: make(chan error)}
		w.devices = d
		w.restart()
		w.run(apiPod("low", withCPU("3")))
		w.sleep(time.Second)
		critical := apiPod("critical", withCPU("3"), withDevice, withPriority(systemCritical))
		w.run(critical)
		w.sleep(time.Second)
		w.checkWaits(critical, "pods that end for it", "to free cpu")
		if want := []types.UID{critical.UID}; !slices.Equal(d.asked, want) || len(d.givenUp) > 0 {
			t.Errorf("while other pods end: got devices reserved for %v and given up by %v, want %v and none",
				d.asked, d.givenUp, want)
		}
		w.delete(critical, 0)
		w.sleep(time.Minute)
		if !slices.Equal(d.givenUp, d.asked) {
			t.Errorf("after the delete: got devices given up by %v, want %v", d.givenUp, d.asked)
		}
	})
}

// TestPreemptorWaitsForDevices checks that a critical pod says that it waits for a device plugin once the pods that end
// for it have ended.
func TestPreemptorWaitsForDevices(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.devices = &slowDevices{answers: make(chan error)}
		w.restart()
		w.run(apiPod("low", withCPU("3")))
		w.sleep(time.Second)
		critical := apiPod("critical", withCPU("3"), withDevice, withPriority(systemCritical))
		w.run(critical)
		w.sleep(time.Minute)
		w.checkWaits(critical, "its devices", "device plugins have not prepared nodelet.test/fake")
		w.delete(critical, 0)
	})
}

// TestSlowDevicePlugin checks that a pod waits for its device plugin and says so; no other pod waits. When the plugin
// answers, the pod runs or is refused as by the kubelet; if the pod is to end, or the agent, the answer is not
// awaited.
func TestSlowDevicePlugin(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, w *world, d *slowDevices, pod *corev1.Pod){
		"gives": func(_ *testing.T, w *world, d *slowDevices, _ *corev1.Pod) {
			d.answers <- nil
			w.sleep(time.Second)
			w.checkRunning("other/app#0", "web/app#0")
		},
		"refuses": func(t *testing.T, w *world, d *slowDevices, pod *corev1.Pod) {
			d.answers <- errors.New("the device is on fire")
			w.sleep(time.Second)
			st := w.status(pod)
			want := "Allocate failed due to the device is on fire, which is unexpected"
			if st.Phase != corev1.PodFailed || st.Reason != "UnexpectedAdmissionError" || !strings.Contains(st.Message, want) {
				t.Errorf("refused pod: got %s, %s, %q, want Failed, UnexpectedAdmissionError, %q",
					st.Phase, st.Reason, st.Message, want)
			}
			if n := len(w.eventsWith("UnexpectedAdmissionError")); n != 1 {
				t.Errorf("got %d events say so, want 1", n)
			}
			w.checkRunning("other/app#0")
		},
		"the pod is deleted": func(t *testing.T, w *world, _ *slowDevices, pod *corev1.Pod) {
			w.delete(pod, 30*time.Second)
			w.sleep(time.Second)
			if _, there := w.set.Pods[pod.UID]; there {
				t.Error("got the pod's end waiting for the plugin, want it at once")
			}
			w.checkRunning("other/app#0")
		},
		"the pod is gone": func(t *testing.T, w *world, _ *slowDevices, pod *corev1.Pod) {
			w.remove(pod.UID)
			w.sleep(time.Second)
			if waits := w.waits(pod); waits != nil {
				t.Errorf("the pod still waits for %v, want nothing", waits)
			}
		},
		"the pod is evicted": func(t *testing.T, w *world, _ *slowDevices, pod *corev1.Pod) {
			<-w.agent.Evict(t.Context(), pod.UID, agent.Eviction{Reason: "Evicted"})
			w.sleep(time.Second)
			if st := w.status(pod); st.Phase != corev1.PodFailed || st.Reason != "Evicted" {
				t.Errorf("evicted pod: got %s, %s, want Failed, Evicted", st.Phase, st.Reason)
			}
		},
		"the agent ends": func(t *testing.T, w *world, d *slowDevices, pod *corev1.Pod) {
			w.restart()
			if st := w.status(pod); st.Phase == corev1.PodFailed {
				t.Errorf("got a refused pod, %q, want it admitted", st.Message)
			}
			d.answers <- nil
			w.sleep(time.Second)
			w.checkRunning("other/app#0", "web/app#0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				d := &slowDevices{answers: make(chan error)}
				w.devices = d
				w.restart()
				pod := apiPod("web", withDevice)
				w.run(pod)
				w.run(apiPod("other"))
				w.sleep(time.Second)
				w.checkRunning("other/app#0")
				w.checkWaits(pod, "its devices", "device plugins have not prepared nodelet.test/fake")
				changed := *pod
				changed.Labels = map[string]string{"changed": "yes"} // which does not let it in
				w.run(&changed)
				w.sleep(anHour)
				w.checkRunning("other/app#0")
				if len(d.asked) != 1 {
					t.Errorf("the devices were reserved %d times, want once", len(d.asked))
				}
				test(t, w, d, &changed)
			})
		})
	}
}

func (d *slowDevices) Health(types.UID) map[string][]corev1.ResourceStatus { return nil }
