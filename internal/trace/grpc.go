package trace

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// CallInterceptor makes a span for each call whose context has one, and passes it on in the header traceparent.
func CallInterceptor(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	name := strings.TrimPrefix(method, "/")
	service, call, _ := strings.Cut(name, "/")
	ctx, span := Child(ctx, name, Client, "rpc.system", "grpc", "rpc.service", service, "rpc.method", call)
	if span == nil {
		return invoke(ctx, method, request, reply, conn, opts...)
	}
	ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", traceparent(ctx))
	err := invoke(ctx, method, request, reply, conn, opts...)
	span.attributes = append(span.attributes, "rpc.response.status_code", status.Code(err).String())
	span.End(err)
	return err
}
