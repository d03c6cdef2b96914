package cri

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

// caller makes the calls to one endpoint: the runtime, or an image service of its own.
type caller struct {
	timeout time.Duration
	done    func(verb string, took time.Duration, err error)
	// connections counts the connections made to the endpoint.
	connections atomic.Uint64
	// streamLists is Options.StreamLists. streams reports whether list calls are tried as streams.
	streamLists bool
	streams     atomic.Bool
	// answered is the end of the last call that the endpoint has answered; nil before the first.
	answered atomic.Pointer[time.Time]
}

func newCaller(o Options) *caller {
	c := &caller{timeout: cmp.Or(o.Timeout, defaultTimeout), done: o.Done, streamLists: o.StreamLists}
	c.streams.Store(o.StreamLists)
	return c
}

// op is one call: the CRI's name of it, its object for messages, such as "default/web#0" (pod and attempt) or
// "default/web/app#2" (container and attempt), and how long it may take (0: as long as the caller's context).
type op struct {
	verb, object string
	limit        time.Duration
}

// do makes a call within the time that the client gives to calls.
func do[Req, Resp any](ctx context.Context, c *caller, verb, object string,
	call func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) (Resp, error) {
	return doWithin(ctx, c, op{verb, object, c.timeout}, call, req)
}

// doWithin makes a call within its limit.
func doWithin[Req, Resp any](ctx context.Context, c *caller, o op,
	call func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) (Resp, error) {
	if o.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.limit)
		defer cancel()
	}
	began := time.Now()
	resp, err := call(ctx, req)
	ended := time.Now()
	took := ended.Sub(began)
	if Answered(err) {
		c.answered.Store(&ended)
	}
	if err != nil {
		e := &Error{Verb: o.verb, Object: o.object, Err: err}
		if o.limit > 0 && took >= o.limit && IsDeadline(err) {
			e.NoAnswer = o.limit
		}
		err = e
	}
	c.done(o.verb, took, err)
	return resp, err
}

// AnsweredAfter reports whether the endpoint has answered a call after t.
func (c *caller) AnsweredAfter(t time.Time) bool {
	last := c.answered.Load()
	return last != nil && last.After(t)
}
