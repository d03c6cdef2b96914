package objects

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ServiceAccount returns the identity and the annotations of the pod's service account. While the API server does not
// answer, it is what was last read for a pod that UsePod has set: its image may need the account with which it was
// pulled.
func (o *Objects) ServiceAccount(ctx context.Context, pod *corev1.Pod) (*corev1.ServiceAccount, error) {
	known := o.account(pod)
	bound, cancel := bounded(ctx, known != nil)
	defer cancel()
	got, err := o.apiServer.ServiceAccount(bound, pod)
	switch {
	case err == nil:
		got = &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
			Namespace: got.Namespace, Name: got.Name, UID: got.UID, Annotations: got.Annotations}}
	case known != nil && noAnswer(err):
		return known, nil
	case !apierrors.IsNotFound(err):
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, used := o.pods[pod.UID]; used {
		o.accounts[pod.UID] = got // nil if it does not exist
	}
	return got, err
}

// account returns what was last read of the pod's service account; nil for nothing.
func (o *Objects) account(pod *corev1.Pod) *corev1.ServiceAccount {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.accounts[pod.UID]
}
