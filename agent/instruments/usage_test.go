package instruments

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
// running containers, and that they start with the sandbox that is ready.
func TestUsagePods(t *testing.T) {
	container := func(id string, state runtimeapi.ContainerState) cri.Container {
		return cri.Container{ContainerStatus: &runtimeapi.ContainerStatus{
			Id:    id,
			State: state,
			Image: &runtimeapi.ImageSpec{Image: "docker.io/library/app:latest"},
		}}
	}
	runs := &cri.Snapshot{
		Sandboxes: []*runtimeapi.PodSandboxStatus{
			{Id: "newest", CreatedAt: 3e18, State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY},
			{Id: "ready", CreatedAt: 2e18},
		},
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
	early := metav1.NewTime(time.Unix(1e9, 0))
	all, err := UsagePods(t.Context(), snapshot{
		{Pod: named("runs"), Runtime: runs, Status: corev1.PodStatus{StartTime: &early}},
		{Pod: named("waits"), Runtime: &cri.Snapshot{}},
		{Pod: named("rejected"), Runtime: runs, Rejected: true},
	}, bare{}, bare{})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].UID != "runs" ||
		len(all[0].Images) != 1 || all[0].Images["c"] != "docker.io/library/app:latest" {
		t.Fatalf("got %+v, want the pod that runs, with the image of the container that runs", all)
	}
	if want := time.Unix(2e9, 0); !all[0].Started.Equal(want) {
		t.Errorf("got the start %v, want %v, when the sandbox was created", all[0].Started, want)
	}
}
