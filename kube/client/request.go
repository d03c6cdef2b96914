package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// AuthorizerLag is how long the API server's checks of nodes may need to learn which pods are bound to the node: until then
	// it forbids the node what those pods refer to, and knows no pod to bind a token to.
	AuthorizerLag = 3 * time.Second
	firstPatience = 20 * time.Millisecond
)

// Patiently makes a request, each attempt Bounded, and repeats it for up to AuthorizerLag as long as the API server seems to lag.
func Patiently(ctx context.Context, request func(context.Context) error) error {
	start := time.Now()
	for delay := firstPatience; ; delay *= 2 {
		err := Bounded(ctx, request)
		if !lags(err) || time.Since(start)+delay > AuthorizerLag {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(delay):
		}
	}
}

// lags: the answer may be another when the API server has heard of a new pod. It calls the kind by either number: its storage says
// pods, its caches say pod.
func lags(err error) bool {
	var answer apierrors.APIStatus
	if apierrors.IsNotFound(err) && errors.As(err, &answer) && answer.Status().Details != nil {
		kind := answer.Status().Details.Kind
		return kind == "pods" || kind == "pod"
	}
	return apierrors.IsForbidden(err)
}

// Bounded makes a request that ends after RequestTimeout at the latest; the error then says so.
func Bounded(ctx context.Context, request func(context.Context) error) error {
	bound, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	err := request(bound)
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the API server has not answered within %s: %w", RequestTimeout, err)
	}
	return err
}
