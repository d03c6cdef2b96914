package cri

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/internal/limiter"
)

const (
	// maxOutputs bounds how many outputs of commands are received at a time.
	maxOutputs = 4
	// outputCountFor is how long one of them counts. The longest takes some 0.1 s; it must not delay the others if the
	// runtime hangs, or begins an answer before the command has ended.
	outputCountFor = time.Second
)

// outputs limits the outputs that are being received. Pods may run any number of commands as probes and hooks, and an
// output may have 16 MiB, which are in memory three times when it is decoded. While one waits, gRPC's flow control
// leaves all but 1 MiB of it with the runtime.
type outputs struct{ *limiter.Limiter }

// intercept makes a call of ExecSync, and waits for its turn when the runtime begins to answer. An answer has a
// trailer, also one that says Unavailable, as while the runtime starts. It passes other calls on.
func (o outputs) intercept(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if method != runtimeapi.RuntimeService_ExecSync_FullMethodName {
		return invoke(ctx, method, request, reply, conn, opts...)
	}
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{}, method, opts...)
	if err != nil {
		return err
	}
	if err := s.SendMsg(request); err != nil {
		return err
	}
	_, _ = s.Header() // waits for the answer; RecvMsg returns its error
	err = o.Do(ctx, func() error { return s.RecvMsg(reply) })
	if IsUnavailable(err) && s.Trailer().Len() == 0 {
		return fmt.Errorf("%w: %w", errCutOff, err)
	}
	return err
}
