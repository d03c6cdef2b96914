package probes

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/nodelet/nodelet/internal/release"
)

// tryGRPC asks a server's health service (grpc.health.v1) about the action's service; none is the server as a whole.
// limit covers connecting and asking. A connection that is refused fails the probe at once, as with the kubelet from
// 1.38 on (kubernetes#142457); before, it connected again until limit. With TLS the certificate is not verified, as for
// HTTPS.
func tryGRPC(ctx context.Context, addr string, action *corev1.GRPCAction, limit time.Duration) (Outcome, string) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	secured := insecure.NewCredentials()
	if ptr.Deref(action.Mode, "") == corev1.GRPCProbeModeTLS {
		secured = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}) // that of transport also offers HTTP/1.1
	}
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithUserAgent("kube-probe/"+release.Minor()),
		grpc.WithTransportCredentials(secured),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxOutput)),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return dialer().DialContext(ctx, "tcp", addr)
		}))
	if err != nil {
		return Failed, fmt.Sprintf("error: failed to connect service at %q: %+v", addr, err)
	}
	defer conn.Close()
	request := &grpc_health_v1.HealthCheckRequest{Service: ptr.Deref(action.Service, "")}
	resp, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, request)
	if err != nil {
		return Failed, grpcFailure(err, limit)
	}
	if s := resp.GetStatus(); s != grpc_health_v1.HealthCheckResponse_SERVING {
		return Failed, fmt.Sprintf("service unhealthy (responded with %q)", s.String())
	}
	return Succeeded, "service healthy"
}

func grpcFailure(err error, limit time.Duration) string {
	switch s := status.Convert(err); s.Code() {
	case codes.Unimplemented:
		return "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): " + s.Message()
	case codes.DeadlineExceeded:
		return fmt.Sprintf("timeout: health rpc did not complete within %v", limit)
	}
	return fmt.Sprintf("error: health rpc probe failed: %+v", err)
}
