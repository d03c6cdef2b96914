package fake

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/grpc/test/bufconn"
	pb "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Connect gives a connection to the runtime through an in-process pipe; it is of the type of cri.Options.Connect. The
// path is ignored. While the runtime is down it fails like a socket without a listener.
func (r *Runtime) Connect(ctx context.Context, _ string) (net.Conn, error) {
	r.mu.Lock()
	pipe := r.pipe
	r.mu.Unlock()
	if pipe == nil {
		return nil, errors.New("connect: connection refused")
	}
	return pipe.DialContext(ctx)
}

// Start serves Connect.
func (r *Runtime) Start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pipe = bufconn.Listen(64 << 10)
	r.serve(r.pipe)
}

// Listen serves a unix socket at path, and Connect.
func (r *Runtime) Listen(socket string) error {
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("remove old socket: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	r.Start()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.socket = socket
	go r.server.Serve(listener)
	return nil
}

// serve makes a server for a listener. r.mu is held.
func (r *Runtime) serve(listener net.Listener) {
	r.server = grpc.NewServer(grpc.InTapHandle(checkContentType), grpc.UnaryInterceptor(r.unary),
		grpc.StreamInterceptor(r.stream))
	pb.RegisterRuntimeServiceServer(r.server, r)
	pb.RegisterImageServiceServer(r.server, &r.imageStore)
	go r.server.Serve(listener)
}

// checkContentType refuses what CRI-O refuses: a call whose content type is not exactly application/grpc. CRI-O closes
// its connection.
func checkContentType(ctx context.Context, info *tap.Info) (context.Context, error) {
	if got := info.Header.Get("content-type"); !slices.Equal(got, []string{"application/grpc"}) {
		return nil, status.Errorf(codes.Unavailable, "content type of %s: got %q, want application/grpc",
			info.FullMethodName, got)
	}
	return ctx, nil
}

// Crash ends the runtime as kill -9 does: connections break, calls are cut off, the state stays for Restart. With
// exitAll the containers and sandboxes end with it, as in a reboot.
func (r *Runtime) Crash(exitAll bool) {
	r.mu.Lock()
	server := r.server
	r.server, r.pipe = nil, nil
	for s := range r.subscribers {
		delete(r.subscribers, s)
	}
	if exitAll {
		for _, c := range r.containers {
			r.exit(c, 255, "Unknown")
		}
		for _, s := range r.sandboxes {
			r.stopSandbox(s)
		}
	}
	r.mu.Unlock()
	if server != nil {
		server.Stop()
	}
}

// Restart serves again after Crash, where it served before.
func (r *Runtime) Restart() error {
	r.mu.Lock()
	socket := r.socket
	r.mu.Unlock()
	if socket != "" {
		return r.Listen(socket)
	}
	r.Start()
	return nil
}

// Close ends the runtime for good: hanging calls are released, timers of containers stopped.
func (r *Runtime) Close() {
	r.releaseAll()
	r.mu.Lock()
	for _, c := range r.containers {
		c.stopTimers()
	}
	r.mu.Unlock()
	r.Crash(false)
}

// unary records a call and lets the fault that waits for it do its work.
func (r *Runtime) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (any, error) {
	verb, object := path.Base(info.FullMethod), objectOf(req)
	fault := r.arrive(verb, object)
	if fault == nil {
		return handler(ctx, req)
	}
	if fault.Inside {
		return handler(context.WithValue(ctx, faultKey{}, fault), req)
	}
	if !fault.Lose {
		if err := fault.strike(ctx); err != nil {
			return nil, err
		}
		return handler(ctx, req)
	}
	resp, err := handler(ctx, req)
	if err := fault.strike(ctx); err != nil {
		return nil, err
	}
	return resp, err
}

func (r *Runtime) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if fault := r.arrive(path.Base(info.FullMethod), ""); fault != nil {
		if err := fault.strike(s.Context()); err != nil {
			return err
		}
	}
	return handler(srv, s)
}
