package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/internal/backoff"
)

const (
	// AuthorizerLag is how long the Node authorizer of the API server may need to learn which pods are bound to the
	// node. Until then it forbids the objects that those pods refer to, and the API server finds no pod to bind a
	// token to.
	AuthorizerLag = 3 * time.Second
	firstDelay    = 20 * time.Millisecond
)

// RetryWhileLagging makes a request, each attempt Bounded, and repeats it for up to AuthorizerLag while the API server
// seems to lag.
func RetryWhileLagging(ctx context.Context, request func(context.Context) error) error {
	return WhileLagging(ctx, func(ctx context.Context) error { return Bounded(ctx, request) })
}

// WhileLagging is RetryWhileLagging for attempts that limit their time themselves.
func WhileLagging(ctx context.Context, attempt func(context.Context) error) error {
	start := time.Now()
	for delay := firstDelay; ; delay *= 2 {
		err := attempt(ctx)
		if !lags(err) || time.Since(start)+delay > AuthorizerLag {
			return err
		}
		if !backoff.Sleep(ctx, delay) {
			return err
		}
	}
}

// lags reports whether the answer may change when the API server has learned of a new pod. Its storage calls the kind
// pods, its caches pod.
func lags(err error) bool {
	var answer apierrors.APIStatus
	if apierrors.IsNotFound(err) && errors.As(err, &answer) && answer.Status().Details != nil {
		kind := answer.Status().Details.Kind
		return kind == "pods" || kind == "pod"
	}
	return apierrors.IsForbidden(err)
}

// Bounded makes a request with a time limit of RequestTimeout; the error says so if it is exceeded.
func Bounded(ctx context.Context, request func(context.Context) error) error {
	return Within(ctx, RequestTimeout, request)
}

// BoundedWrite is Bounded for a request that writes: its time limit is WriteTimeout.
func BoundedWrite(ctx context.Context, request func(context.Context) error) error {
	return Within(ctx, WriteTimeout, request)
}

// Within is Bounded with another time limit. The error is one of Answer.
func Within(ctx context.Context, limit time.Duration, request func(context.Context) error) error {
	bound, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := Answer(request(bound))
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the API server has not answered within %s: %w", limit, err)
	}
	return err
}

// ErrNoPath is the error of a request that was answered with 404 without saying what does not exist: the API server
// does not serve the path, or a proxy or load balancer has answered while the server behind it restarts.
var ErrNoPath = errors.New("neither an object nor its absence was answered")

// Answer returns the error of a request as one that satisfies apierrors.IsNotFound only if the API server says that the
// object does not exist. Another 404 says nothing about it, like a connection that fails.
func Answer(err error) error {
	if apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return fmt.Errorf("%w: %s", ErrNoPath, err.Error())
	}
	return err
}
