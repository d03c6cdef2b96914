package cri

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

// caller makes the calls of a client.
type caller struct {
	timeout time.Duration
	done    func(verb string, took time.Duration, err error)
	// streams reports whether list calls are tried as streams.
	streams atomic.Bool
	flight
}

// op is one call: the CRI's name of it, its object for messages, and how long it may take (0: as long as the caller's
// context).
type op struct {
	verb, object string
	limit        time.Duration
}

// do makes a call within the time that the client gives to calls.
func do[Req, Resp any](ctx context.Context, c *caller, verb, object string,
	call func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) (Resp, error) {
	return doWithin(ctx, c, op{verb, object, c.timeout}, call, req)
}

// doWithin makes a call within its limit and lists it among the calls in flight.
func doWithin[Req, Resp any](ctx context.Context, c *caller, o op,
	call func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) (Resp, error) {
	if o.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.limit)
		defer cancel()
	}
	began := time.Now()
	id := c.begin(Call{Verb: o.verb, Object: o.object, Since: began})
	resp, err := call(ctx, req)
	took := time.Since(began)
	if err != nil {
		e := &Error{Verb: o.verb, Object: o.object, Err: err}
		if o.limit > 0 && took >= o.limit && IsDeadline(err) {
			e.NoAnswer = o.limit
		}
		err = e
	}
	c.end(id)
	c.done(o.verb, took, err)
	return resp, err
}

// Call is a call the runtime has not answered yet.
type Call struct {
	// Verb is the CRI's name, for example RunPodSandbox.
	Verb string
	// Object is the object of the call: "default/web#0" (pod and attempt), "default/web/app#2" (container and attempt), a
	// container, sandbox or image.
	Object string
	// Since is when the call began, with a monotonic reading.
	Since time.Time
}

// flight is the table of the calls in flight.
type flight struct {
	mu    sync.Mutex
	next  uint64
	calls map[uint64]Call
}

func (f *flight) begin(c Call) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls == nil {
		f.calls = make(map[uint64]Call)
	}
	f.next++
	f.calls[f.next] = c
	return f.next
}

func (f *flight) end(id uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.calls, id)
}

// InFlight lists the calls that the runtime has not answered yet, the oldest first.
func (f *flight) InFlight() []Call {
	f.mu.Lock()
	calls := make([]Call, 0, len(f.calls))
	for _, call := range f.calls {
		calls = append(calls, call)
	}
	f.mu.Unlock()
	slices.SortFunc(calls, func(a, b Call) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Verb, b.Verb), cmp.Compare(a.Object, b.Object))
	})
	return calls
}
