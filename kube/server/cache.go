package server

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	// maxRemembered bounds the cached answers of each kind.
	maxRemembered = 2048
	// maxAsking bounds the concurrent requests to the API server: unauthenticated callers cause them too.
	maxAsking = 32
	// askTime is how long the API server may take.
	askTime = 10 * time.Second
)

// memory caches answers of the API server. Equal questions at the same time are asked once.
type memory[V any] struct {
	asking  singleflight.Group
	places  chan struct{}
	mu      sync.Mutex
	answers map[string]answer[V]
}

type answer[V any] struct {
	value V
	until time.Time
}

func newMemory[V any]() *memory[V] {
	return &memory[V]{answers: map[string]answer[V]{}, places: make(chan struct{}, maxAsking)}
}

// get returns the answer to a question from the cache or from ask, which also returns how long its answer is valid.
// Errors are not cached. A request goes on if its caller leaves, because others may wait for it.
func (m *memory[V]) get(
	ctx context.Context, key string, ask func(context.Context) (V, time.Duration, error),
) (V, error) {
	if v, ok := m.known(key); ok {
		return v, nil
	}
	got := m.asking.DoChan(key, func() (any, error) {
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
			m.remember(key, answer[V]{v, time.Now().Add(holds)})
		}
		return v, err
	})
	select {
	case r := <-got:
		if r.Err != nil {
			var none V
			return none, r.Err
		}
		return r.Val.(V), nil
	case <-ctx.Done():
		var none V
		return none, ctx.Err()
	}
}

func (m *memory[V]) known(key string) (V, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, ok := m.answers[key]
	if ok && time.Now().After(a.until) {
		delete(m.answers, key)
		ok = false
	}
	return a.value, ok
}

func (m *memory[V]) remember(key string, a answer[V]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.answers) >= maxRemembered {
		m.forget()
	}
	m.answers[key] = a
}

// forget removes answers that have expired and, if more than half are left, any others until half are left. m.mu is
// held.
func (m *memory[V]) forget() {
	now := time.Now()
	for k, a := range m.answers {
		if now.After(a.until) {
			delete(m.answers, k)
		}
	}
	for k := range m.answers {
		if len(m.answers) <= maxRemembered/2 {
			return
		}
		delete(m.answers, k)
	}
}
