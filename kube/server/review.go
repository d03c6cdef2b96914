package server

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/internal/backoff"
)

// maxAttempts is how often a review is sent, as by the kubelet.
const maxAttempts = 5

// create sends a TokenReview or SubjectAccessReview to the API server, which completes it. It is sent again after an
// error that may pass, until ctx ends: a review changes nothing, so it does not matter if the first one has arrived.
func create(ctx context.Context, api rest.Interface, resource string, review runtime.Object) error {
	var wait backoff.Backoff
	for attempt := 1; ; attempt++ {
		err := api.Post().Resource(resource).Body(review).Do(ctx).Into(review)
		if !mayPass(err) || attempt == maxAttempts || !backoff.Sleep(ctx, wait.Next(0)) {
			return err
		}
	}
}

// mayPass reports whether err is that of a broken connection, or of an API server for which the kubelet tries again.
func mayPass(err error) bool {
	return utilnet.IsProbableEOF(err) || utilnet.IsHTTP2ConnectionLost(err) ||
		apierrors.IsInternalError(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err)
}
