package agent

import (
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/cri"
)

// FuzzRuntimeAnswer: whatever the runtime answers about a pod, a plan comes of it that creates no container beside one
// of the same name that may run.
func FuzzRuntimeAnswer(f *testing.F) {
	box := &runtimeapi.PodSandboxStatus{Id: "box", Metadata: &runtimeapi.PodSandboxMetadata{}}
	one := &runtimeapi.ContainerStatus{
		Id:       "one",
		Metadata: &runtimeapi.ContainerMetadata{Name: "app"},
		Labels:   map[string]string{"io.kubernetes.container.name": "app"},
		State:    runtimeapi.ContainerState_CONTAINER_RUNNING,
	}
	for _, state := range []runtimeapi.ContainerState{0, 1, 2, 3, 9} {
		one.State = state
		sandbox, errBox := proto.Marshal(box)
		container, errOne := proto.Marshal(one)
		if errBox != nil || errOne != nil {
			f.Fatal(errBox, errOne)
		}
		f.Add(sandbox, container, []byte{})
		f.Add([]byte{}, container, container)
	}
	pod := &corev1.Pod{}
	pod.Spec.Containers = []corev1.Container{{Name: "app", Image: "a"}}
	f.Fuzz(func(t *testing.T, sandbox, first, second []byte) {
		s := &cri.Snapshot{Sandboxes: []*runtimeapi.PodSandboxStatus{{}}}
		if proto.Unmarshal(sandbox, s.Sandboxes[0]) != nil {
			return
		}
		for _, answer := range [][]byte{first, second} {
			status := &runtimeapi.ContainerStatus{}
			if proto.Unmarshal(answer, status) != nil {
				return
			}
			status.LogPath, status.Annotations = "", nil // they name files of this machine
			s.Containers = append(s.Containers, cri.Container{ContainerStatus: status, SandboxID: s.Sandboxes[0].Id})
		}
		facts := listedFacts("uid", cri.PodSummary{}) // reads no file: the statuses name none
		facts.read(s, slog.New(slog.DiscardHandler))
		o := podstate.Observed{Now: time.Now(), Sandboxes: facts.sandboxes, Containers: facts.containers}
		for _, step := range plan.Pod(podstate.Desired{Pod: pod}, o).Steps {
			create, ok := step.(podstate.CreateContainer)
			for _, c := range o.Containers {
				if ok && c.Name == create.Name && c.Alive() {
					t.Errorf("got %s beside %+v, want no second instance", step, c)
				}
			}
		}
	})
}
