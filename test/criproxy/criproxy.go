// Package criproxy stands between an agent and its container runtime and forwards CRI messages without reading
// them.
//
// It owns the socket that the agent connects to and the connection to the runtime. It never decides what happens to a
// call: its caller's handler does, with Pass. The differential test and the soak test call it. It keeps nothing, so a
// crash leaves a socket file that the testbed removes.
package criproxy

import (
	"context"
	"io"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const maxMessage = 16 << 20

// Proxy is a server for the agent and a client of the runtime. Create it with Start.
type Proxy struct {
	server *grpc.Server
	conn   *grpc.ClientConn
}

// Handler answers one call: method is its full name, request the encoded message. It sends encoded answers to in.
type Handler func(p *Proxy, in grpc.ServerStream, method string, request []byte) error

// Start listens at the socket and has each call answered by handle. runtime is the runtime's endpoint, unix:///path.
func Start(socket, runtime string, handle Handler) (*Proxy, error) {
	conn, err := grpc.NewClient(runtime, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{}), grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		conn.Close()
		return nil, err
	}
	p := &Proxy{conn: conn}
	call := func(_ any, in grpc.ServerStream) error {
		method, ok := grpc.MethodFromServerStream(in)
		if !ok {
			return status.Error(codes.Internal, "no method")
		}
		var request []byte
		if err := in.RecvMsg(&request); err != nil {
			return err
		}
		return handle(p, in, method, request)
	}
	p.server = grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.UnknownServiceHandler(call),
		grpc.MaxRecvMsgSize(maxMessage))
	go func() { _ = p.server.Serve(listener) }()
	return p, nil
}

// Close ends all calls.
func (p *Proxy) Close() {
	p.server.Stop()
	p.conn.Close()
}

// Pass sends one request to the runtime and calls answer with each answer. Messages are encoded, as []byte.
func (p *Proxy) Pass(ctx context.Context, method string, request []byte, answer func([]byte) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md.Copy())
	}
	out, err := p.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return err
	}
	if err := out.SendMsg(&request); err != nil {
		return err
	}
	if err := out.CloseSend(); err != nil {
		return err
	}
	for {
		var message []byte
		switch err := out.RecvMsg(&message); {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		if err := answer(message); err != nil {
			return err
		}
	}
}

// raw forwards messages as they are.
type raw struct{}

// Name returns no name, because gRPC appends it to the content type, and CRI-O takes application/grpc alone.
func (raw) Name() string { return "" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

var _ encoding.CodecV2 = raw{}
