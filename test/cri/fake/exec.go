package fake

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pb "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ExecFunc is what commands in containers do; container is the container's name.
type ExecFunc func(container string, cmd []string) ExecOutcome

// ExecOutcome is what a command comes to.
type ExecOutcome struct {
	Stdout, Stderr string
	ExitCode       int32
	// Takes is how long the command runs.
	Takes time.Duration
	// Early: the call begins to be answered when the command starts.
	Early bool
	// Holds: the command leaves a child behind that holds its output open, so that the call waits for its client to go.
	Holds bool
}

// OnExec sets what commands in containers do; without it they succeed at once, with no output.
func (r *Runtime) OnExec(f ExecFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.exec = f
}

// ExecSync runs a scripted command.
func (r *Runtime) ExecSync(ctx context.Context, req *pb.ExecSyncRequest) (*pb.ExecSyncResponse, error) {
	r.mu.Lock()
	c, err := r.find(req.ContainerId)
	exec := r.exec
	if err == nil && c.status.State != pb.ContainerState_CONTAINER_RUNNING {
		err = fmt.Errorf("failed to exec in container: container is in %s state", c.status.State)
	}
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	var out ExecOutcome
	if exec != nil {
		out = exec(c.status.Metadata.Name, req.Cmd)
	}
	if out.Early {
		if err := grpc.SendHeader(ctx, nil); err != nil {
			return nil, err
		}
	}
	limit := time.Duration(req.Timeout) * time.Second
	timedOut := limit > 0 && out.Takes > limit
	if timedOut {
		out.Takes = limit
	}
	if err := work(ctx, out.Takes); err != nil {
		return nil, err
	}
	if out.Holds {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if timedOut && r.CRIO {
		return &pb.ExecSyncResponse{Stderr: []byte("command timed out"), ExitCode: -1}, nil
	}
	if timedOut {
		return nil, status.Errorf(codes.DeadlineExceeded,
			"failed to exec in container: timeout %v exceeded: context deadline exceeded", limit)
	}
	return &pb.ExecSyncResponse{Stdout: []byte(out.Stdout), Stderr: []byte(out.Stderr), ExitCode: out.ExitCode}, nil
}
