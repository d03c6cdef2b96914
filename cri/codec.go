package cri

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// codec is gRPC's codec for protobuf with another pool. To decode a message of several frames gRPC joins them in a
// buffer of its own pool, whatever the pool of the connection is.
type codec struct {
	encoding.CodecV2
	pool mem.BufferPool
}

func newCodec(pool mem.BufferPool) codec { return codec{encoding.GetCodecV2(proto.Name), pool} }

// Unmarshal decodes the message in data into v.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	joined := data.MaterializeToBuffer(c.pool)
	defer joined.Free()
	return c.CodecV2.Unmarshal(mem.BufferSlice{joined}, v)
}
