package podsapi

import (
	"context"
	"errors"
	"path"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// counting returns the options of a gRPC server that make it call Config.Asked after each call.
func (s *Server) counting() []grpc.ServerOption {
	unary := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		answer, err := handler(ctx, req)
		s.count(info.FullMethod, err)
		return answer, err
	}
	stream := func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		err := handler(srv, ss)
		s.count(info.FullMethod, err)
		return err
	}
	return []grpc.ServerOption{grpc.UnaryInterceptor(unary), grpc.StreamInterceptor(stream)}
}

// count reports a call by its full name, such as /v1alpha1.Pods/ListPods. A client that ends its watch has canceled it.
func (s *Server) count(method string, err error) {
	code := status.Code(err)
	if errors.Is(err, context.Canceled) {
		code = codes.Canceled
	}
	version, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), ".")
	s.cfg.Asked(version, path.Base(method), code.String())
}
