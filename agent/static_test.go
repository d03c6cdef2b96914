package agent

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/spec"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/pods"
)

// TestRunningStatic checks what is known of the static pods that run: of containers of an ended sandbox, nothing.
func TestRunningStatic(t *testing.T) {
	labels := func(container string) map[string]string {
		return map[string]string{
			podutil.LabelPodNamespace: "n", podutil.LabelPodName: "p", podutil.LabelPodUID: "0123abcd",
			podutil.LabelContainerName: container,
		}
	}
	sandbox := func(id string, state runtimeapi.PodSandboxState) *runtimeapi.PodSandbox {
		return &runtimeapi.PodSandbox{Id: id, State: state, Labels: labels(""), Annotations: map[string]string{
			podutil.AnnotationHash: "0123abcd", podutil.AnnotationSource: "file",
			podutil.AnnotationSeen: "2026-11-30T00:00:00Z",
		}}
	}
	container := func(sandbox, name, hash string) *runtimeapi.Container {
		return &runtimeapi.Container{PodSandboxId: sandbox, Labels: labels(name),
			Annotations: map[string]string{spec.AnnotationHash: hash}}
	}
	found := runningStatic(
		[]*runtimeapi.PodSandbox{
			sandbox("old", runtimeapi.PodSandboxState_SANDBOX_NOTREADY), sandbox("s", runtimeapi.PodSandboxState_SANDBOX_READY),
		},
		[]*runtimeapi.Container{
			container("old", "a", "1"), container("s", "a", "2"), container("s", "b", "no hash"), container("x", "c", "3"),
		})
	r := found[types.NamespacedName{Namespace: "n", Name: "p"}]
	if diff := cmp.Diff(map[string]string{"a": "2"}, r.Hashes); diff != "" || r.UID != "0123abcd" ||
		r.Source != pods.SourceFile || len(found) != 1 {
		t.Errorf("got %v, difference of the hashes %s", found, diff)
	}
}
