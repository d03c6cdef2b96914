package main

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// runtimeMode is what the proxy does to calls of the agent to the runtime.
type runtimeMode string

// The modes. Each but the first concerns about a third of the calls.
const (
	runtimeNormal runtimeMode = "normal"
	runtimeFails  runtimeMode = "fails"  // the call does not reach the runtime
	runtimeLoses  runtimeMode = "loses"  // the runtime does it, the answer is lost
	runtimeHangs  runtimeMode = "hangs"  // no answer until the caller gives up or the mode changes
	runtimeLate   runtimeMode = "late"   // up to five seconds more, before or after the runtime does it
	runtimeTwice  runtimeMode = "twice"  // the runtime gets the call twice, the second answer counts
	runtimeSilent runtimeMode = "silent" // no events, and the stream of events breaks
)

// runtimeProxy stands between the agent and the runtime. It hands messages through without reading them.
type runtimeProxy struct {
	server *grpc.Server
	conn   *grpc.ClientConn

	mu      sync.Mutex
	mode    runtimeMode
	changed chan struct{} // closed at the next change of mode
}

// raw hands messages through as they are.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

var _ encoding.CodecV2 = raw{}

func startRuntimeProxy(socket, runtime string) (*runtimeProxy, error) {
	conn, err := grpc.NewClient(runtime, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{}), grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		conn.Close()
		return nil, err
	}
	p := &runtimeProxy{conn: conn, mode: runtimeNormal, changed: make(chan struct{})}
	p.server = grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.UnknownServiceHandler(p.handle),
		grpc.MaxRecvMsgSize(16<<20))
	go func() { _ = p.server.Serve(listener) }()
	return p, nil
}

func (p *runtimeProxy) close() {
	p.server.Stop()
	p.conn.Close()
}

func (p *runtimeProxy) set(m runtimeMode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = m
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *runtimeProxy) now() (runtimeMode, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mode, p.changed
}

var errFault = status.Error(codes.Unavailable, "made by the soak test")

// handle passes one call on, or not.
func (p *runtimeProxy) handle(_ any, in grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(in)
	if !ok {
		return status.Error(codes.Internal, "no method")
	}
	var request []byte
	if err := in.RecvMsg(&request); err != nil {
		return err
	}
	if strings.HasSuffix(method, "/GetContainerEvents") {
		return p.events(in, method, request)
	}
	mode, changed := p.now()
	if rand.IntN(3) > 0 {
		mode = runtimeNormal
	}
	switch mode {
	case runtimeFails:
		return errFault
	case runtimeLoses:
		_ = p.pass(context.WithoutCancel(in.Context()), nil, method, request)
		return errFault
	case runtimeHangs:
		select {
		case <-changed:
		case <-in.Context().Done():
		}
		return errFault
	case runtimeLate:
		before := time.Duration(rand.IntN(2500)) * time.Millisecond
		after := time.Duration(rand.IntN(2500)) * time.Millisecond
		time.Sleep(before)
		// The runtime does it whether or not the caller still waits.
		defer time.Sleep(after)
		return p.pass(context.WithoutCancel(in.Context()), in, method, request)
	case runtimeTwice:
		_ = p.pass(in.Context(), nil, method, request)
	}
	return p.pass(in.Context(), in, method, request)
}

// events passes the runtime's events on until the mode says otherwise.
func (p *runtimeProxy) events(in grpc.ServerStream, method string, request []byte) error {
	ctx, cancel := context.WithCancel(in.Context())
	defer cancel()
	go func() {
		for {
			mode, changed := p.now()
			if mode == runtimeSilent {
				cancel()
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return p.pass(ctx, in, method, request)
}

// pass hands a request to the runtime and its answers back; in may be nil, then they are dropped.
func (p *runtimeProxy) pass(ctx context.Context, in grpc.ServerStream, method string, request []byte) error {
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
		var answer []byte
		switch err := out.RecvMsg(&answer); {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		if in == nil {
			continue
		}
		if err := in.SendMsg(&answer); err != nil {
			return err
		}
	}
}
