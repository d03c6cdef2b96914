package objects

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/kube/watch"
)

const (
	// readsAtOnce and tokensAtOnce bound the reads and the requests for tokens under way, opensAtOnce the watches being opened.
	// Where all 100 streams of a connection to the API server are in use, each request more opens a connection, and a handshake
	// costs both sides more than the request. Within the bounds they go in the order in which they come, so that the first pods
	// have all they need long before the last.
	readsAtOnce  = 16
	tokensAtOnce = 16
	opensAtOnce  = 4
	// rushLimit is how long watches stand back at most.
	rushLimit = 5 * time.Second
)

// rush lets what pods wait for go first when many start at once: reads of objects, and tokens. Watches, which nobody waits for, are
// opened when none of these is under way. The client's rate limiter counts neither: a node full of pods that start would wait
// seconds for it. They are bounded by the starts of pods and containers.
type rush struct {
	reads, tokens, opens chan struct{} // places

	mu      sync.Mutex
	pending int           // reads and requests for tokens that are made or wait for a place
	calm    chan struct{} // closed when there is none
}

func newRush() *rush {
	calm := make(chan struct{})
	close(calm)
	return &rush{reads: make(chan struct{}, readsAtOnce), tokens: make(chan struct{}, tokensAtOnce), opens: make(chan struct{}, opensAtOnce), calm: calm}
}

// read makes a request that a pod waits for, at one of the places.
func (r *rush) read(ctx context.Context, places chan struct{}, request func(context.Context) error) error {
	r.count(1)
	defer r.count(-1)
	return client.Patiently(ctx, func(ctx context.Context) error {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
			return request(ctx)
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

func (r *rush) count(by int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending == 0 {
		r.calm = make(chan struct{})
	}
	r.pending += by
	if r.pending == 0 {
		close(r.calm)
	}
}

// over waits until no read is under way, but not longer than rushLimit. It is false when ctx has ended.
func (r *rush) over(ctx context.Context) bool {
	r.mu.Lock()
	calm := r.calm
	r.mu.Unlock()
	limit := time.NewTimer(rushLimit)
	defer limit.Stop()
	select {
	case <-calm:
	case <-limit.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// open opens a watch that tells what comes after version.
func (r *rush) open(ctx context.Context, target watch.Target, version string) (*watch.Stream, error) {
	select {
	case r.opens <- struct{}{}:
		defer func() { <-r.opens }()
		return target.Open(ctx, metav1.ListOptions{ResourceVersion: version}, streamLife)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
