package objects

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
)

// PullSecrets returns the Secrets of the pod's imagePullSecrets which can be had, in their order. An error names the others;
// it is no reason not to pull, since the image may be public.
func (o *Objects) PullSecrets(ctx context.Context, pod *corev1.Pod) ([]*corev1.Secret, error) {
	return pullSecrets(ctx, pod, o.Secret)
}

func pullSecrets(ctx context.Context, pod *corev1.Pod,
	get func(ctx context.Context, namespace, name string) (*corev1.Secret, error)) (found []*corev1.Secret, err error) {
	for _, ref := range pod.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue // old manifests have such
		}
		s, e := get(ctx, pod.Namespace, ref.Name)
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		found = append(found, s)
	}
	return found, err
}
