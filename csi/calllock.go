package csi

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/nodelet/nodelet/internal/keylock"
)

// callLock is the lock of a volume for calls that change something: by the CSI specification not more than one of them
// may be in flight for a volume. When its holder gives up a call, the call keeps the lock until it ends.
type callLock struct {
	unlock func()
	// ended is closed when the last call has its answer, or its timeout has passed. Nil: there was no call.
	ended chan struct{}
}

// callLocks are those of all volumes.
type callLocks struct{ byVolume keylock.Keyed }

// lock waits for the lock of a volume, or until ctx is done.
func (l *callLocks) lock(ctx context.Context, k key) (*callLock, error) {
	unlock, err := l.byVolume.Lock(ctx, k.String())
	if err != nil {
		return nil, err
	}
	return &callLock{unlock: unlock}, nil
}

// release gives the lock back as soon as no call is in flight.
func (l *callLock) release() {
	if l.ended == nil {
		l.unlock()
		return
	}
	select {
	case <-l.ended:
		l.unlock()
	default:
		go func() {
			<-l.ended
			l.unlock()
		}()
	}
}

// change makes a call that changes something. It returns when ctx is done, but does not cancel the call: the driver may
// go on with its work, and nobody would know when it ends. Calls to in-tree drivers are cancelled, as they return only
// when their work has ended.
func change[Req, Resp any](ctx context.Context, l *callLock, d *driver, verb string,
	do func(context.Context, Req, ...grpc.CallOption) (Resp, error), r Req) error {
	if inTree(d.name) {
		_, err := call(ctx, d, verb, do, r)
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	var answer error // read once ended is closed
	ended := make(chan struct{})
	l.ended = ended
	d.calls.Add(1)
	go func() {
		defer close(ended)
		defer d.calls.Done()
		_, answer = call(context.WithoutCancel(ctx), d, verb, do, r)
	}()
	select {
	case <-ended:
		return answer
	case <-ctx.Done():
		return fmt.Errorf("CSI driver %s: %s goes on without its caller: %w", d.name, verb, ctx.Err())
	}
}
