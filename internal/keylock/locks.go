// Package keylock provides locks by name.
//
// It never decides who needs one. Packages call it whose work on one object must be serialized, but not the work on
// different objects. A crash leaves nothing behind.
package keylock

import (
	"context"
	"sync"
)

// Keyed is a set of locks by name. A lock without holder and waiters takes no memory. The zero value is ready.
type Keyed struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	slot  chan struct{}
	users int
}

// Lock waits for the named lock, or until ctx is done.
func (k *Keyed) Lock(ctx context.Context, name string) (unlock func(), err error) {
	l := k.join(name)
	select {
	case l.slot <- struct{}{}:
		return func() { <-l.slot; k.leave(name, l) }, nil
	case <-ctx.Done():
		k.leave(name, l)
		return nil, ctx.Err()
	}
}

func (k *Keyed) join(name string) *lock {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.held[name]
	if l == nil {
		if k.held == nil {
			k.held = map[string]*lock{}
		}
		l = &lock{slot: make(chan struct{}, 1)}
		k.held[name] = l
	}
	l.users++
	return l
}

func (k *Keyed) leave(name string, l *lock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(k.held, name)
	}
}
