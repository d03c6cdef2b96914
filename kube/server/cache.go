package server

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/cache"
)

const (
	// maxRemembered bounds the cached answers of each kind.
	maxRemembered = 2048
	// maxAsking bounds the concurrent requests to the API server: unauthenticated callers cause them too.
	maxAsking = 32
	// maxWaiting bounds the questions that wait or are asked, and their callers, whose requests stay in memory.
	maxWaiting = 1024
	// askTime is how long the API server may take.
	askTime = 10 * time.Second
)

// errBusy is the error for a question beyond maxWaiting.
var errBusy = errors.New("too many requests wait for the API server to authenticate or authorize them")

// answerCache caches answers of the API server. Equal questions at the same time are asked once.
type answerCache[V any] struct {
	asking  singleflight.Group
	places  chan struct{}
	waiting atomic.Int32
	answers *cache.LRUExpireCache // of V
}

func newAnswerCache[V any]() *answerCache[V] {
	return &answerCache[V]{answers: cache.NewLRUExpireCache(maxRemembered), places: make(chan struct{}, maxAsking)}
}

// get returns the answer to a question from the cache or from ask, which also returns how long its answer is valid.
// Errors are not cached. A request goes on if its caller leaves, because others may wait for it.
func (m *answerCache[V]) get(
	ctx context.Context, key string, ask func(context.Context) (V, time.Duration, error),
) (none V, _ error) {
	if v, ok := m.answers.Get(key); ok {
		return v.(V), nil
	}
	defer m.waiting.Add(-1)
	if m.waiting.Add(1) > maxWaiting {
		return none, errBusy
	}
	got := m.asking.DoChan(key, func() (any, error) {
		m.waiting.Add(1)
		defer m.waiting.Add(-1)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTime)
		defer cancel()
		select {
		case m.places <- struct{}{}:
			defer func() { <-m.places }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		v, holds, err := ask(ctx)
		if err == nil {
			m.answers.Add(key, v, holds)
		}
		return v, err
	})
	select {
	case r := <-got:
		if r.Err != nil {
			return none, r.Err
		}
		return r.Val.(V), nil
	case <-ctx.Done():
		return none, ctx.Err()
	}
}
