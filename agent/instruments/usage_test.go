package instruments

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/metrics/usage"
)

// bare says that pods have neither cgroups nor volumes.
type bare struct{}

func (bare) Path(*corev1.Pod) string { return "" }

func (bare) Plugin(_ *corev1.Pod, v *corev1.Volume, _ string) string { return pluginname.Of(v) }

func (bare) Usage(*corev1.Pod, map[string]string) map[string]usage.Volume { return nil }

// TestUsagePods checks that pods with a sandbox are measured, with the names that the runtime gives the images of their
// running containers.
func TestUsagePods(t *testing.T) {
	container := func(id string, state runtimeapi.ContainerState) cri.Container {
		return cri.Container{ContainerStatus: &runtimeapi.ContainerStatus{
			Id:    id,
			State: state,
			Image: &runtimeapi.ImageSpec{Image: "docker.io/library/app:latest"},
		}}
	}
	runs := &cri.Snapshot{
		Sandboxes: []*runtimeapi.PodSandboxStatus{{Id: "s"}}, // it is ready
		Containers: []cri.Container{
			container("c", runtimeapi.ContainerState_CONTAINER_RUNNING),
			container("ended", runtimeapi.ContainerState_CONTAINER_EXITED),
		},
	}
	named := func(uid types.UID) *corev1.Pod {
		pod := &corev1.Pod{}
		pod.UID = uid
		return pod
	}
	all, err := UsagePods(t.Context(), snapshot{
		{Pod: named("runs"), Runtime: runs},
		{Pod: named("waits"), Runtime: &cri.Snapshot{}},
		{Pod: named("rejected"), Runtime: runs, Rejected: true},
	}, bare{}, bare{})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].UID != "runs" ||
		len(all[0].Images) != 1 || all[0].Images["c"] != "docker.io/library/app:latest" {
		t.Errorf("got %+v, want the pod that runs, with the image of the container that runs", all)
	}
}
