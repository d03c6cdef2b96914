package objects

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// PullSecrets returns those Secrets of the pod's imagePullSecrets that can be read, in their order. The error says why
// the missing ones cannot. It is no reason not to pull: the image may be public.
func (o *Objects) PullSecrets(ctx context.Context, pod *corev1.Pod) (
	found []*corev1.Secret, missing []string, err error) {
	return pullSecrets(ctx, pod, o.Secret)
}

func pullSecrets(ctx context.Context, pod *corev1.Pod,
	get func(ctx context.Context, namespace, name string) (*corev1.Secret, error)) (
	found []*corev1.Secret, missing []string, err error) {
	for _, ref := range podutil.PullSecretReferences(&pod.Spec, nil) {
		s, e := get(ctx, pod.Namespace, ref.Name)
		if e != nil {
			missing, err = append(missing, ref.Name), errors.Join(err, e)
			continue
		}
		found = append(found, s)
	}
	return found, missing, err
}
