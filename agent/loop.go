package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/nodelet/nodelet/internal/latest"
)

// loop is how other goroutines reach the supervisor's goroutine, which owns the set of workers: they send it functions
// to call.
type loop struct {
	calls chan func()
	// waiting returns what the goroutine waits for before it begins, or nil.
	waiting func() error
	// began is closed when the goroutine has begun, gone when it has ended.
	began, gone chan struct{}
}

func newLoop(waiting func() error) *loop {
	return &loop{
		calls:   make(chan func(), 128), // about one for each pod of a node, so that callers rarely wait
		waiting: waiting,
		began:   make(chan struct{}),
		gone:    make(chan struct{}),
	}
}

// post makes the loop call f. It blocks until the loop accepts f or has ended. Before the loop has begun, which may
// never happen, it does nothing: no pod has a worker yet, and each worker begins with a look at everything.
func (l *loop) post(f func()) {
	if !latest.Closed(l.began) {
		return
	}
	select {
	case l.calls <- f:
	case <-l.gone:
	}
}

// do makes the loop call f, and reports whether the call has returned. It has not if the loop has not begun, as with
// post, if it has ended, or if ctx ends before; in that case f may still be called later. A caller who wants something
// of the loop calls get or ask.
func (l *loop) do(ctx context.Context, f func()) bool {
	if !latest.Closed(l.began) {
		return false
	}
	done := make(chan struct{})
	select {
	case l.calls <- func() { f(); close(done) }:
	case <-l.gone:
		return false
	case <-ctx.Done():
		return false
	}
	select {
	case <-done:
		return true
	case <-l.gone:
	case <-ctx.Done():
	}
	return latest.Closed(done)
}

var errEnding = errors.New("the agent is stopping; try again when it has restarted")

// get makes the loop call f, and returns what f returns; nothing if the call has not returned, see do: the loop may
// still be collecting it then.
func get[T any](ctx context.Context, l *loop, f func() T) (answer T, ok bool) {
	var v T
	if !l.do(ctx, func() { v = f() }) {
		return answer, false
	}
	return v, true
}

// ask is get for a caller who needs an answer: an error says why there is none, at once if the loop cannot begin yet.
func ask[T any](ctx context.Context, l *loop, f func() T) (answer T, err error) {
	if err := l.waiting(); err != nil {
		return answer, err
	}
	select {
	case <-l.began:
	case <-ctx.Done():
	}
	answer, ok := get(ctx, l, f)
	if !ok {
		return answer, cmp.Or(ctx.Err(), errEnding)
	}
	return answer, nil
}

// answers returns an error if the loop does not answer before ctx ends. Before the loop has begun it returns nil.
func (l *loop) answers(ctx context.Context) error {
	l.do(ctx, func() {})
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("supervisor does not answer: %w", err)
	}
	return nil
}
