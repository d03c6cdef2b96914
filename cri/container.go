package cri

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

var (
	errNoID     = errors.New("the container runtime gave no ID")
	errNoStatus = errors.New("the container runtime gave no status")
	errSilent   = status.Error(codes.Unavailable, "the container runtime answers no calls")
)

// CreateContainer creates a container in a sandbox and returns its ID. sandbox is the configuration that the sandbox
// was created with. After an error the container may exist nevertheless. A second call with the same attempt in cfg
// then fails with containerd, and returns the ID of that container with CRI-O.
func (c *Client) CreateContainer(ctx context.Context, sandboxID string, cfg *runtimeapi.ContainerConfig,
	sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	pod, container := sandbox.GetMetadata(), cfg.GetMetadata()
	object := fmt.Sprintf("%s/%s/%s#%d", pod.GetNamespace(), pod.GetName(), container.GetName(), container.GetAttempt())
	resp, err := do(ctx, c.caller, "CreateContainer", object, c.runtime.CreateContainer,
		&runtimeapi.CreateContainerRequest{PodSandboxId: sandboxID, Config: cfg, SandboxConfig: sandbox})
	if err == nil && resp.ContainerId == "" {
		return "", &Error{Verb: "CreateContainer", Object: object, Err: errNoID}
	}
	return resp.GetContainerId(), err
}

// StartContainer starts a created container. One that failed to start cannot be started again: with containerd it is
// exited, with the reason StartError, and CRI-O removes it.
func (c *Client) StartContainer(ctx context.Context, id string) error {
	_, err := do(ctx, c.caller, "StartContainer", id, c.runtime.StartContainer,
		&runtimeapi.StartContainerRequest{ContainerId: id})
	return err
}

// StopContainer sends the stop signal and, after grace, SIGKILL. It returns when the container has terminated. A grace
// of 0 kills at once; fractions of a second are rounded up. The call is bounded by grace and the usual time. It may be
// repeated, also while another call with a longer grace waits for the same container, and for a container that is gone.
// If ctx ends first, no SIGKILL follows: the caller must call again.
func (c *Client) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	_, err := doWithin(ctx, c.caller, op{"StopContainer", id, grace + c.timeout}, c.runtime.StopContainer,
		&runtimeapi.StopContainerRequest{ContainerId: id, Timeout: wholeSeconds(grace)})
	return err
}

// RemoveContainer removes a container; one that still runs is killed. It may be called again and for a container that
// is gone.
func (c *Client) RemoveContainer(ctx context.Context, id string) error {
	_, err := do(ctx, c.caller, "RemoveContainer", id, c.runtime.RemoveContainer,
		&runtimeapi.RemoveContainerRequest{ContainerId: id})
	return err
}

// UpdateContainerResources changes the resources of a container in place.
func (c *Client) UpdateContainerResources(ctx context.Context, id string,
	resources *runtimeapi.LinuxContainerResources) error {
	defer c.updates.Add(1)
	_, err := do(ctx, c.caller, "UpdateContainerResources", id, c.runtime.UpdateContainerResources,
		&runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: resources})
	return err
}

// ReopenContainerLog makes the runtime reopen the log file of a container after a rotation.
func (c *Client) ReopenContainerLog(ctx context.Context, id string) error {
	_, err := do(ctx, c.caller, "ReopenContainerLog", id, c.runtime.ReopenContainerLog,
		&runtimeapi.ReopenContainerLogRequest{ContainerId: id})
	return err
}

// CheckpointContainer writes a checkpoint of a running container to the file at location. It has timeout, but at least
// the usual time, as with the kubelet.
func (c *Client) CheckpointContainer(ctx context.Context, id, location string, timeout time.Duration) error {
	timeout = max(timeout, c.timeout)
	_, err := doWithin(ctx, c.caller, op{"CheckpointContainer", id, timeout}, c.runtime.CheckpointContainer,
		&runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: location, Timeout: wholeSeconds(timeout)})
	return err
}

// ExecResult is the result of a command in a container.
type ExecResult struct {
	// Stdout and Stderr are the command's output; runtimes cut it off at 16 MiB.
	Stdout, Stderr []byte
	// ExitCode is the exit code of the command; a code other than 0 is not an error.
	ExitCode int32
}

// ExecSync runs a command in a container and waits for its end. After timeout (rounded up to seconds) the runtime kills
// the command, and has the usual time to answer. IsDeadline reports that error, also if there is no answer: the command
// cannot be killed, or has exited but a child holds its output open. If the runtime has answered no other call either
// since the command had to end, nothing is known of the command: IsUnavailable reports that error. A timeout of 0 means
// as long as ctx. More than 16 MiB of output is an error, as with the kubelet.
func (c *Client) ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (ExecResult, error) {
	o := op{verb: "ExecSync", object: id}
	if timeout > 0 {
		o.limit = timeout + c.timeout
	}
	due := time.Now().Add(timeout)
	resp, err := doWithin(ctx, c.caller, o, c.runtime.ExecSync,
		&runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: cmd, Timeout: wholeSeconds(timeout)})
	if late, ok := errors.AsType[*Error](err); ok && late.NoAnswer > 0 && !c.AnsweredAfter(due) {
		late.Err = errSilent
	}
	return ExecResult{Stdout: resp.GetStdout(), Stderr: resp.GetStderr(), ExitCode: resp.GetExitCode()}, err
}

// Output is ExecSync for callers that want both outputs as one.
func (c *Client) Output(ctx context.Context, id string, cmd []string, timeout time.Duration) ([]byte, int32, error) {
	r, err := c.ExecSync(ctx, id, cmd, timeout)
	return append(r.Stdout, r.Stderr...), r.ExitCode, err
}

// Exec returns the URL at which the runtime serves a stream for a command in a container.
func (c *Client) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (string, error) {
	resp, err := do(ctx, c.caller, "Exec", req.ContainerId, c.runtime.Exec, req)
	return resp.GetUrl(), err
}

// Attach returns the URL at which the runtime serves a stream to a container's main process.
func (c *Client) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (string, error) {
	resp, err := do(ctx, c.caller, "Attach", req.ContainerId, c.runtime.Attach, req)
	return resp.GetUrl(), err
}

func (c *Client) listContainers(ctx context.Context, object string,
	labels map[string]string) ([]*runtimeapi.Container, error) {
	filter := &runtimeapi.ContainerFilter{LabelSelector: labels}
	return listed(ctx, c.caller, "ListContainers", object,
		c.runtime.StreamContainers, &runtimeapi.StreamContainersRequest{Filter: filter},
		(*runtimeapi.StreamContainersResponse).GetContainers,
		c.runtime.ListContainers, &runtimeapi.ListContainersRequest{Filter: filter},
		(*runtimeapi.ListContainersResponse).GetContainers)
}

func (c *Client) containerStatus(ctx context.Context, id string) (*runtimeapi.ContainerStatus, error) {
	resp, err := do(ctx, c.caller, "ContainerStatus", id, c.runtime.ContainerStatus,
		&runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err == nil && resp.Status == nil {
		err = &Error{Verb: "ContainerStatus", Object: id, Err: errNoStatus}
	}
	if err != nil {
		return nil, err
	}
	c.mounted.Store(id, imageVolumes(resp.Status))
	resp.Status.Message = podutil.Shorten(resp.Status.Message, podutil.MaxMessage) // a snapshot keeps it
	return resp.Status, nil
}

// wholeSeconds rounds up: half a second must not become 0, which means at once or for ever.
func wholeSeconds(d time.Duration) int64 {
	return int64((max(d, 0) + time.Second - 1) / time.Second)
}
