package objects

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	calls "github.com/nodelet/nodelet/internal/limiter"
	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/kube/watch"
)

const (
	// readsAtOnce and tokensAtOnce limit the concurrent reads and token requests, opensAtOnce the watches that are
	// being opened. When all 100 streams of a connection to the API server are in use, each further request opens a
	// connection, and its handshake costs both sides more than the request. Requests are made in the order of their
	// calls, so that the first pods have all they need long before the last.
	readsAtOnce  = 16
	tokensAtOnce = 16
	opensAtOnce  = 4
	// idleLimit is how long watches wait for reads at most.
	idleLimit = 5 * time.Second
)

// limiter gives priority to the requests that pods wait for when many start at once: reads of objects, and tokens.
// Watches are opened when none of these is in flight. The rate limiter of the client counts neither: if a whole node
// of pods starts, they would wait seconds for it. Their number is bounded by the starts of pods and containers.
type limiter struct {
	reads, tokens, opens chan struct{} // semaphores
	answers              atomic.Int64  // to reads and token requests

	mu      sync.Mutex
	pending int           // reads and token requests that are in flight or wait
	idle    chan struct{} // closed when there is none
}

func newLimiter() *limiter {
	idle := make(chan struct{})
	close(idle)
	return &limiter{
		reads:  make(chan struct{}, readsAtOnce),
		tokens: make(chan struct{}, tokensAtOnce),
		opens:  make(chan struct{}, opensAtOnce),
		idle:   idle,
	}
}

// read makes a request that a pod waits for. semaphore is l.reads or l.tokens. limit is how long the API server has to
// answer.
func (l *limiter) read(ctx context.Context, semaphore chan struct{}, limit time.Duration,
	request func(context.Context) error) error {
	l.count(1)
	defer l.count(-1)
	return client.WhileLagging(ctx, func(ctx context.Context) error {
		if err := l.enter(ctx, semaphore, limit); err != nil {
			return err
		}
		err := calls.WhileItCounts(client.RequestTimeout, func() { <-semaphore },
			func() error { return client.Within(ctx, limit, request) })
		if err == nil || !noAnswer(err) {
			l.answers.Add(1)
		}
		return err
	})
}

// noAnswer reports whether the API server could not be reached, could not answer, or does not accept the node's
// credentials.
func noAnswer(err error) bool {
	return apierrors.ReasonForError(err) == metav1.StatusReasonUnknown || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsInternalError(err) || apierrors.IsTooManyRequests(err) || apierrors.IsUnauthorized(err) ||
		apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err)
}

// enter waits for a place in semaphore. It waits longer than limit only while the API server answers other requests:
// the wait for a place says nothing about the API server.
func (l *limiter) enter(ctx context.Context, semaphore chan struct{}, limit time.Duration) error {
	for {
		before := l.answers.Load()
		err := client.Within(ctx, limit, func(ctx context.Context) error {
			select {
			case semaphore <- struct{}{}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		if err == nil || ctx.Err() != nil || l.answers.Load() == before {
			return err
		}
	}
}

func (l *limiter) count(by int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending == 0 {
		l.idle = make(chan struct{})
	}
	l.pending += by
	if l.pending == 0 {
		close(l.idle)
	}
}

// awaitIdle waits until no read is in flight, at most for idleLimit. It reports whether ctx has not ended.
func (l *limiter) awaitIdle(ctx context.Context) bool {
	l.mu.Lock()
	idle := l.idle
	l.mu.Unlock()
	limit := time.NewTimer(idleLimit)
	defer limit.Stop()
	select {
	case <-idle:
	case <-limit.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// open opens a watch of the changes after version.
func (l *limiter) open(ctx context.Context, target watch.Target, version string) (*watch.Stream, error) {
	select {
	case l.opens <- struct{}{}:
		defer func() { <-l.opens }()
		return target.Open(ctx, metav1.ListOptions{ResourceVersion: version}, streamTimeout)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
