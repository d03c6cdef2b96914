package execute

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/cri/images"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// pulls makes the images of containers and of image volumes present.
type pulls struct {
	*Backends
	sandboxes *sandboxes
}

// ensure makes an image present by its pull policy, or only looks for it. lacks says that the pull has failed without
// a pull secret that could not be read.
func (x *pulls) ensure(ctx context.Context, t *Task, s podstate.EnsureImage) (
	image images.Image, lacks bool, err error) {
	policy := s.Policy
	if s.Look {
		policy = corev1.PullNever
	}
	var missing []string
	got, err := x.Images.Ensure(ctx, images.Request{
		Image:  s.Image,
		Policy: policy,
		Pod:    t.Pod,
		Secrets: func(ctx context.Context) (found []*corev1.Secret) {
			found, missing = x.secrets(ctx, t)
			return found
		},
		Sandbox: func() (*runtimeapi.PodSandboxConfig, error) { return x.sandboxes.config(t.Pod, 0, x.Node()) },
		Event: func(reason, message string) { // about the container that needs it, or about the pod for an image volume
			x.Events.PodEvent(t.Pod, s.Container, corev1.EventTypeNormal, reason, message)
		},
	})
	if err == nil && got.Pulled {
		x.Metrics.Pulled(got.Size, got.Took)
	}
	if lacks = len(missing) > 0 && pullFailed(err); lacks { // without them the image may still be public
		x.Events.PodEvent(t.Pod, "", corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret", fmt.Sprintf(
			"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.",
			strings.Join(missing, ", ")))
	}
	return got.Image, lacks, err
}

// pullFailed reports whether err says that an image could not be pulled.
func pullFailed(err error) bool {
	reason, ok := errors.AsType[*images.Reason](err)
	return ok && reason.Reason == podutil.ReasonErrImagePull
}

// secrets reads the pod's pull secrets, and returns the names of those that it could not read.
func (x *pulls) secrets(ctx context.Context, t *Task) (found []*corev1.Secret, missing []string) {
	found, missing, err := x.Objects(t.Pod).PullSecrets(ctx, t.Pod)
	if err != nil {
		t.Log.Info("cannot read all pull secrets", "err", err)
	}
	return found, missing
}
