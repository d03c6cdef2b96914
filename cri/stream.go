package cri

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
)

// listed makes a list call: as a stream of parts if the client and the runtime have it (KEP-5825), because the answer
// of a node with thousands of containers is longer than a message may be; otherwise as one message. Once the runtime
// has answered that it has no streams, none is tried again over this connection.
func listed[Req, Part, WholeReq, Whole, Item any](ctx context.Context, c *caller, verb, object string,
	stream func(context.Context, Req, ...grpc.CallOption) (grpc.ServerStreamingClient[Part], error), parts Req,
	itemsOf func(*Part) []Item,
	call func(context.Context, WholeReq, ...grpc.CallOption) (Whole, error), whole WholeReq,
	allOf func(Whole) []Item) ([]Item, error) {
	return do(ctx, c, verb, object, func(ctx context.Context, _ struct{}, _ ...grpc.CallOption) ([]Item, error) {
		if c.streams.Load() {
			all, err := received(ctx, stream, parts, itemsOf)
			if !IsUnimplemented(err) {
				return all, err
			}
			c.streams.Store(false)
		}
		resp, err := call(ctx, whole)
		if err != nil {
			return nil, err
		}
		return allOf(resp), nil
	}, struct{}{})
}

// received returns the items of all parts of a stream. What an incomplete stream has sent counts for nothing.
func received[Req, Part, Item any](ctx context.Context,
	stream func(context.Context, Req, ...grpc.CallOption) (grpc.ServerStreamingClient[Part], error), req Req,
	itemsOf func(*Part) []Item) (all []Item, err error) {
	ctx, cancel := context.WithCancel(ctx) // ends the stream if it is left before its end
	defer cancel()
	s, err := stream(ctx, req)
	for err == nil {
		var part *Part
		if part, err = s.Recv(); err == nil {
			all = append(all, itemsOf(part)...)
		}
	}
	if errors.Is(err, io.EOF) {
		return all, nil
	}
	return nil, err
}
