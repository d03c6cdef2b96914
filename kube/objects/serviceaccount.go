package objects

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ServiceAccount returns the identity and the annotations of the pod's service account. While that cannot be read, it
// is what was last read for a pod that UsePod has set: its image may need the account with which it was pulled.
func (o *Objects) ServiceAccount(ctx context.Context, pod *corev1.Pod) (*corev1.ServiceAccount, error) {
	account, err := o.accounts.get(pod.UID, func(limit time.Duration) (*corev1.ServiceAccount, error) {
		got, err := o.serviceAccount(ctx, pod, limit)
		if err != nil {
			return nil, err
		}
		return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
			Namespace: got.Namespace, Name: got.Name, UID: got.UID, Annotations: got.Annotations}}, nil
	})
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, used := o.pods[pod.UID]; !used {
		o.accounts.Delete(pod.UID)
	}
	return account, err
}
