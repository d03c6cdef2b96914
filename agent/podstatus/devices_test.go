package podstatus

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
)

// health makes the status of one resource from pairs of device and health.
func health(pairs ...string) []corev1.ResourceStatus {
	one := corev1.ResourceStatus{Name: "nodelet.test/fake"}
	for i := 0; i < len(pairs); i += 2 {
		one.Resources = append(one.Resources, corev1.ResourceHealth{
			ResourceID: corev1.ResourceID(pairs[i]),
			Health:     corev1.ResourceHealthStatus(pairs[i+1]),
		})
	}
	return []corev1.ResourceStatus{one}
}

// TestDeviceHealth checks which health of devices the status shows, given what is known and what was reported.
func TestDeviceHealth(t *testing.T) {
	for name, test := range map[string]struct {
		now, reported, want []corev1.ResourceStatus
		stop                *podstate.Stop
	}{
		"no devices": {},
		"known":      {now: health("d1", "Healthy", "d2", "Unhealthy"), want: health("d1", "Healthy", "d2", "Unhealthy")},
		"changed": {
			now:      health("d1", "Unhealthy"),
			reported: health("d1", "Healthy"),
			want:     health("d1", "Unhealthy"),
		},
		"not known yet":     {now: health("d1", ""), reported: health("d1", "Unhealthy"), want: health("d1", "Unhealthy")},
		"never known":       {now: health("d1", ""), reported: health("d9", "Healthy"), want: health("d1", "Unknown")},
		"without its gate":  {reported: health("d1", "Healthy")},
		"given back at end": {reported: health("d1", "Healthy"), want: health("d1", "Healthy"), stop: &podstate.Stop{}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{}
			pod.Spec.InitContainers = []corev1.Container{{Name: "init"}}
			pod.Spec.Containers = []corev1.Container{{Name: "app"}}
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", AllocatedResourcesStatus: test.reported}}
			o := podstate.Observed{}
			if test.now != nil {
				o.DeviceHealth = map[string][]corev1.ResourceStatus{"app": test.now, "init": test.now}
			}
			b := build(pod, o)
			b.Ending = test.stop
			b.containerStatuses()
			if got := b.st.ContainerStatuses[0].AllocatedResourcesStatus; !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
			if got := b.st.InitContainerStatuses[0].AllocatedResourcesStatus; got != nil {
				t.Errorf("init container: got %+v, want none, as with the kubelet", got)
			}
		})
	}
}
