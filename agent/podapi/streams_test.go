package podapi

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/kube/server"
)

// failing is a Runtime that serves no stream.
type failing struct {
	Runtime
	err error
}

func (f failing) Exec(context.Context, *runtimeapi.ExecRequest) (string, error)     { return "", f.err }
func (f failing) Attach(context.Context, *runtimeapi.AttachRequest) (string, error) { return "", f.err }
func (f failing) PortForward(context.Context, *runtimeapi.PortForwardRequest) (string, error) {
	return "", f.err
}

// TestStreamErrors checks which HTTP status an error of the runtime has.
func TestStreamErrors(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-0"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}},
	}
	view := agent.PodView{
		Pod: pod,
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
			{Name: "app", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		}},
		Runtime: &cri.Snapshot{
			Sandboxes: []*runtimeapi.PodSandboxStatus{{Id: "s", State: runtimeapi.PodSandboxState_SANDBOX_READY}},
			Containers: []cri.Container{{ContainerStatus: &runtimeapi.ContainerStatus{
				Id:       "c",
				Metadata: &runtimeapi.ContainerMetadata{Name: "app"},
				State:    runtimeapi.ContainerState_CONTAINER_RUNNING,
			}}},
		},
	}
	for code, want := range map[codes.Code]server.Error{
		codes.NotFound:          {Code: 404},
		codes.ResourceExhausted: {Code: 429, RetryAfter: time.Minute},
		codes.Unknown:           {},
	} {
		runtime := failing{err: &cri.Error{Verb: "Exec", Err: status.Error(code, "no")}}
		s := New(Config{Pods: views{view}, Runtime: runtime})
		in := server.Container{Namespace: "default", Pod: "web-0", Name: "app"}
		_, execErr := s.Exec(t.Context(), in, nil, server.StreamOptions{})
		_, attachErr := s.Attach(t.Context(), in, server.StreamOptions{})
		_, forwardErr := s.PortForward(t.Context(), in, nil)
		for call, err := range map[string]error{"exec": execErr, "attach": attachErr, "port-forward": forwardErr} {
			got := &server.Error{}
			errors.As(err, &got)
			if err == nil || got.Code != want.Code || got.RetryAfter != want.RetryAfter {
				t.Errorf("%s after %v: got %v, %+v, want %+v", call, code, err, got, want)
			}
		}
	}
}
