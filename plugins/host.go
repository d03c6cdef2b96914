package plugins

import (
	"context"
	"errors"
	"sync"
)

// ErrEnding refuses what would begin while background work ends.
var ErrEnding = errors.New("the node agent is shutting down")

// Background is the work that the handler of a plugin type does beside its callers. Create it with NewBackground.
type Background struct {
	mu     sync.Locker
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// NewBackground returns work that may begin at once. mu guards the state of the handler.
func NewBackground(mu sync.Locker) *Background {
	b := &Background{mu: mu}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// Context ends when the work has to end.
func (b *Background) Context() context.Context { return b.ctx }

// Ended reports whether the work has to end. Nothing may begin then.
func (b *Background) Ended() bool { return b.ctx.Err() != nil }

// Go runs f. The caller has found, holding mu, that the work has not ended.
func (b *Background) Go(f func()) { b.work.Go(f) }

// Begin runs f, unless the work has to end. It reports whether it does. The caller does not hold mu.
func (b *Background) Begin(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.Ended() {
		return false
	}
	b.Go(f)
	return true
}

// Wait waits for ctx to end, and then for all work. Between the two it calls finish, which may be nil, without mu.
func (b *Background) Wait(ctx context.Context, finish func()) {
	<-ctx.Done()
	b.mu.Lock() // nothing begins after this
	b.cancel()
	b.mu.Unlock()
	if finish != nil {
		finish()
	}
	b.work.Wait()
}
