package csi

import (
	"context"
	"sync"
)

// keyed are locks by name. One that nobody holds or waits for takes no memory.
type keyed struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	slot  chan struct{}
	users int
}

// lock waits for the named lock, or for the end of ctx.
func (k *keyed) lock(ctx context.Context, name string) (unlock func(), err error) {
	k.mu.Lock()
	l := k.held[name]
	if l == nil {
		l = &lock{slot: make(chan struct{}, 1)}
		k.held[name] = l
	}
	l.users++
	k.mu.Unlock()
	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.held, name)
		}
	}
	select {
	case l.slot <- struct{}{}:
		return func() { <-l.slot; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
