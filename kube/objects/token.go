package objects

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/client"
)

// Token requests a token of the pod's service account for audience, bound to the pod: it is valid no longer than the
// pod exists. An empty audience is that of the API server. The API server may grant another lifetime than
// expirationSeconds; expires is the granted one. The token is not stored.
func (a *apiServer) Token(ctx context.Context, pod *corev1.Pod, audience string, expirationSeconds int64) (
	token string, expires time.Time, err error) {
	return a.AccountToken(ctx, pod, "", audience, expirationSeconds)
}

// AccountToken is Token for the service account with this UID. If another one has its name now, the error satisfies
// apierrors.IsConflict; API servers before 1.34 give the token of that one.
func (a *apiServer) AccountToken(ctx context.Context, pod *corev1.Pod, account types.UID, audience string,
	expirationSeconds int64) (token string, expires time.Time, err error) {
	r := &authenticationv1.TokenRequest{
		ObjectMeta: metav1.ObjectMeta{UID: account},
		Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: &expirationSeconds,
			BoundObjectRef: &authenticationv1.BoundObjectReference{
				APIVersion: "v1",
				Kind:       "Pod",
				Name:       pod.Name,
				UID:        pod.UID,
			},
		},
	}
	if audience != "" {
		r.Spec.Audiences = []string{audience}
	}
	got := &authenticationv1.TokenRequest{}
	err = a.limiter.read(ctx, a.limiter.tokens, client.WriteTimeout, func(ctx context.Context) error {
		return a.cfg.Core.Post().Throttle(nil).Namespace(pod.Namespace).Resource("serviceaccounts").
			Name(pod.Spec.ServiceAccountName).SubResource("token").Body(r).Do(ctx).Into(got)
	})
	if err != nil {
		return "", time.Time{}, fmt.Errorf("request a token of service account %s/%s: %w",
			pod.Namespace, pod.Spec.ServiceAccountName, err)
	}
	if got.Status.Token == "" {
		return "", time.Time{}, fmt.Errorf("request a token of service account %s/%s: the API server returned an empty one",
			pod.Namespace, pod.Spec.ServiceAccountName)
	}
	return got.Status.Token, got.Status.ExpirationTimestamp.Time, nil
}

// serviceAccount reads the pod's service account. The API server has limit to answer.
func (a *apiServer) serviceAccount(ctx context.Context, pod *corev1.Pod, limit time.Duration) (
	*corev1.ServiceAccount, error) {
	account := &corev1.ServiceAccount{}
	err := a.limiter.read(ctx, a.limiter.reads, limit, func(ctx context.Context) error {
		return a.cfg.Core.Get().Throttle(nil).Namespace(pod.Namespace).Resource("serviceaccounts").
			Name(pod.Spec.ServiceAccountName).Do(ctx).Into(account)
	})
	if err != nil {
		return nil, fmt.Errorf("get service account %s/%s: %w", pod.Namespace, pod.Spec.ServiceAccountName, err)
	}
	return account, nil
}
