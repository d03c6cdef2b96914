// Package flight shares work among callers that ask for the same at the same time. Unlike singleflight, it cancels the
// work when no caller waits for it any more.
//
// It owns the work under way, and never decides what is the same. cri/images and its providers call it, for pulls and
// for programs that would only waste time then. A crash leaves nothing behind.
package flight

import (
	"context"
	"sync"
)

// Group has the work under way by key. It is safe for use by many goroutines. The zero value is ready.
type Group[T any] struct {
	mu      sync.Mutex
	flights map[string]*flight[T]
}

// flight is work under way, shared by all who ask with the same key.
type flight[T any] struct {
	// waiters is guarded by the group's mutex.
	waiters int
	cancel  context.CancelFunc
	// done is closed when result and err are set.
	done   chan struct{}
	result T
	err    error
}

// Do returns the result of work, which runs once for all who ask with the same key at the same time. The work has the
// values of the first one's ctx. It is cancelled when all who wait for it have gone, each with the end of its own ctx.
func (g *Group[T]) Do(ctx context.Context, key string, work func(context.Context) (T, error)) (T, error) {
	f := g.join(ctx, key, work)
	select {
	case <-f.done:
		return f.result, f.err
	case <-ctx.Done():
		g.leave(key, f)
		var none T
		return none, context.Cause(ctx)
	}
}

// join finds or starts the flight for a key.
func (g *Group[T]) join(ctx context.Context, key string, work func(context.Context) (T, error)) *flight[T] {
	g.mu.Lock()
	defer g.mu.Unlock()
	f := g.flights[key]
	if f == nil {
		if g.flights == nil {
			g.flights = map[string]*flight[T]{}
		}
		f = &flight[T]{done: make(chan struct{})}
		ctx, f.cancel = context.WithCancel(context.WithoutCancel(ctx))
		g.flights[key] = f
		go g.fly(ctx, key, f, work)
	}
	f.waiters++
	return f
}

func (g *Group[T]) fly(ctx context.Context, key string, f *flight[T], work func(context.Context) (T, error)) {
	defer f.cancel()
	f.result, f.err = work(ctx)
	g.mu.Lock()
	g.forget(key, f)
	g.mu.Unlock()
	close(f.done)
}

// leave takes one waiter off a flight; the last one cancels it.
func (g *Group[T]) leave(key string, f *flight[T]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f.waiters--; f.waiters == 0 {
		f.cancel()
		g.forget(key, f)
	}
}

// forget makes the next who asks start a flight of its own. g.mu is held.
func (g *Group[T]) forget(key string, f *flight[T]) {
	if g.flights[key] == f {
		delete(g.flights, key)
	}
}
