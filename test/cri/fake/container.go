package fake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	pb "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Script is how containers of a name behave. The zero value runs until it is stopped and ends at SIGTERM with code 143.
type Script struct {
	// StartErr makes StartContainer fail with this text.
	StartErr string
	// RunsFor ends the container by itself, with ExitCode, that long after its start; 0: never.
	RunsFor  time.Duration
	ExitCode int32
	// OOM gives an end by itself the reason OOMKilled.
	OOM bool
	// TermTakes is how long the container needs from SIGTERM to its end.
	TermTakes time.Duration
	// CleanStop makes it end with code 0 at SIGTERM.
	CleanStop bool
	// IgnoresTerm: only SIGKILL ends it. Unkillable: not even that.
	IgnoresTerm, Unkillable bool
}

type container struct {
	name      string
	sandboxID string
	script    Script
	status    *pb.ContainerStatus
	// stopped is closed at the container's end.
	stopped chan struct{}
	// termed: SIGTERM has been sent.
	termed    bool
	self, end *time.Timer
	usage     Usage
}

func (c *container) stopTimers() {
	for _, t := range []*time.Timer{c.self, c.end} {
		if t != nil {
			t.Stop()
		}
	}
}

// Script sets how containers of a name behave from their next start on.
func (r *Runtime) Script(container string, s Script) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scripts[container] = s
}

// CreateContainer reserves the name and makes a container in a ready sandbox.
func (r *Runtime) CreateContainer(ctx context.Context,
	req *pb.CreateContainerRequest) (*pb.CreateContainerResponse, error) {
	meta, pod := req.GetConfig().GetMetadata(), req.GetSandboxConfig().GetMetadata()
	if meta == nil || pod == nil {
		return nil, errors.New("container config and sandbox config must include metadata")
	}
	r.mu.Lock()
	s := r.sandboxes[req.PodSandboxId]
	if s == nil {
		r.mu.Unlock()
		return nil, status.Errorf(codes.NotFound, "failed to find sandbox id %q: not found", req.PodSandboxId)
	}
	if s.status.State != pb.PodSandboxState_SANDBOX_READY {
		r.mu.Unlock()
		return nil, fmt.Errorf("sandbox container %q is not running", req.PodSandboxId)
	}
	name := strings.Join([]string{meta.Name, pod.Name, pod.Namespace, pod.Uid, attempt(meta.Attempt)}, "_")
	id := r.newID("c0de")
	err := r.reserve("container", name, id)
	image := r.lookup(req.Config.GetImage().GetImage())
	startErr := r.scripts[meta.Name].StartErr
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	err = inside(ctx)
	switch {
	case err != nil:
	case r.CRIO && startErr != "":
		err = fmt.Errorf("container create failed: %s", startErr)
	case image == nil:
		err = status.Errorf(codes.NotFound, "failed to resolve image %q: not found", req.Config.GetImage().GetImage())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		delete(r.names, name)
		return nil, err
	}
	r.addContainer(id, name, req, image)
	return &pb.CreateContainerResponse{ContainerId: id}, nil
}

// addContainer enters a created container. r.mu is held.
func (r *state) addContainer(id, name string, req *pb.CreateContainerRequest, image *pb.Image) {
	cfg := req.Config
	r.containers[id] = &container{name: name, sandboxID: req.PodSandboxId, stopped: make(chan struct{}),
		status: &pb.ContainerStatus{Id: id, Metadata: cfg.Metadata, State: pb.ContainerState_CONTAINER_CREATED,
			CreatedAt: time.Now().UnixNano(), Image: cfg.Image, ImageRef: imageRef(image), ImageId: image.Id, Labels: cfg.Labels,
			Annotations: cfg.Annotations, Mounts: cfg.Mounts, LogPath: req.GetSandboxConfig().GetLogDirectory() +
				"/" + cfg.LogPath,
			Resources: &pb.ContainerResources{Linux: cfg.GetLinux().GetResources()}}}
	r.publish(id, req.PodSandboxId, pb.ContainerEventType_CONTAINER_CREATED_EVENT)
}

// StartContainer starts a created container by its script.
func (r *Runtime) StartContainer(_ context.Context, req *pb.StartContainerRequest) (*pb.StartContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, err := r.find(req.ContainerId)
	if err != nil {
		return nil, err
	}
	st := c.status
	if st.State != pb.ContainerState_CONTAINER_CREATED {
		return nil, fmt.Errorf("failed to set starting state for container %q: container is in %s state", st.Id, st.State)
	}
	c.script = r.scripts[st.Metadata.Name]
	if c.script.StartErr != "" {
		st.Message = c.script.StartErr
		r.exit(c, 128, "StartError")
		return nil, errors.New(c.script.StartErr)
	}
	if s := r.sandboxes[c.sandboxID]; s == nil || s.status.State != pb.PodSandboxState_SANDBOX_READY {
		err := fmt.Errorf("sandbox container %q is not running", c.sandboxID)
		st.Message = err.Error()
		r.exit(c, 128, "StartError")
		return nil, err
	}
	st.State, st.StartedAt = pb.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
	if c.script.RunsFor > 0 {
		reason := ""
		if c.script.OOM {
			reason = "OOMKilled"
		}
		c.self = r.exitAfter(c, c.script.RunsFor, c.script.ExitCode, reason)
	}
	r.publish(st.Id, c.sandboxID, pb.ContainerEventType_CONTAINER_STARTED_EVENT)
	return &pb.StartContainerResponse{}, nil
}

func (r *state) exitAfter(c *container, after time.Duration, code int32, reason string) *time.Timer {
	return time.AfterFunc(after, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.exit(c, code, reason)
	})
}

// exit ends a container that has not ended yet; an empty reason means Completed or Error by the code. r.mu is held.
func (r *state) exit(c *container, code int32, reason string) {
	st := c.status
	if st.State == pb.ContainerState_CONTAINER_EXITED ||
		st.State == pb.ContainerState_CONTAINER_CREATED && reason != "StartError" {
		return
	}
	c.stopTimers()
	if reason == "" {
		reason = "Error"
		if code == 0 {
			reason = "Completed"
		}
	}
	st.State, st.FinishedAt = pb.ContainerState_CONTAINER_EXITED, time.Now().UnixNano()
	st.ExitCode, st.Reason = code, reason
	close(c.stopped)
	r.publish(st.Id, c.sandboxID, pb.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// ExitContainer ends a running container from outside; an empty reason means Completed or Error by the code.
func (r *state) ExitContainer(id string, code int32, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.containers[id]; c != nil {
		r.exit(c, code, reason)
	}
}

// SetReason corrects the reason of a container after its exit without sending an event, as containerd does for a late
// OOM event.
func (r *state) SetReason(id, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.containers[id]; c != nil {
		c.status.Reason = reason
	}
}

// Unannotate removes an annotation from all containers, as if another agent had created them.
func (r *state) Unannotate(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		delete(c.status.Annotations, key)
	}
}

// StopContainer sends SIGTERM, once however often it is called, and SIGKILL after the grace of this call. When the
// client goes before, it sends no SIGKILL.
func (r *Runtime) StopContainer(ctx context.Context, req *pb.StopContainerRequest) (*pb.StopContainerResponse, error) {
	r.mu.Lock()
	c := r.containers[req.ContainerId]
	if c == nil || c.status.State != pb.ContainerState_CONTAINER_RUNNING {
		r.mu.Unlock()
		return &pb.StopContainerResponse{}, nil
	}
	if req.Timeout > 0 && !c.termed {
		c.termed = true
		r.term(c)
	}
	r.mu.Unlock()
	if req.Timeout > 0 {
		timer := time.NewTimer(time.Duration(req.Timeout) * time.Second)
		defer timer.Stop()
		select {
		case <-c.stopped:
			return &pb.StopContainerResponse{}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-timer.C:
		}
	}
	r.mu.Lock()
	if !c.script.Unkillable {
		r.exit(c, 137, "")
	}
	r.mu.Unlock()
	select {
	case <-c.stopped:
		return &pb.StopContainerResponse{}, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("an error occurs during waiting for container %q to be killed: %w", req.ContainerId, ctx.Err())
	}
}

// term is what SIGTERM does to a container. r.mu is held.
func (r *state) term(c *container) {
	code := int32(143)
	if c.script.CleanStop {
		code = 0
	}
	switch {
	case c.script.IgnoresTerm:
	case c.script.TermTakes == 0:
		r.exit(c, code, "")
	default:
		c.end = r.exitAfter(c, c.script.TermTakes, code, "")
	}
}

// RemoveContainer kills and removes a container.
func (r *Runtime) RemoveContainer(_ context.Context,
	req *pb.RemoveContainerRequest) (*pb.RemoveContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.containers[req.ContainerId]; c != nil {
		r.removeContainer(c)
	}
	return &pb.RemoveContainerResponse{}, nil
}

func (r *state) removeContainer(c *container) {
	r.exit(c, 137, "")
	delete(r.containers, c.status.Id)
	delete(r.names, c.name)
	r.publish(c.status.Id, c.sandboxID, pb.ContainerEventType_CONTAINER_DELETED_EVENT)
}

// ListContainers lists the containers that pass the filter, the youngest first.
func (r *Runtime) ListContainers(_ context.Context, req *pb.ListContainersRequest) (*pb.ListContainersResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, resp := req.GetFilter(), &pb.ListContainersResponse{}
	for _, c := range r.containers {
		st := c.status
		if f.GetId() != "" && f.GetId() != st.Id || f.GetPodSandboxId() != "" && f.GetPodSandboxId() != c.sandboxID ||
			f.GetState() != nil && f.GetState().State != st.State || !matches(f.GetLabelSelector(), st.Labels) {
			continue
		}
		resp.Containers = append(resp.Containers, &pb.Container{Id: st.Id, PodSandboxId: c.sandboxID,
			Metadata: st.Metadata, Image: st.Image, ImageRef: st.ImageRef, ImageId: st.ImageId, State: st.State,
			CreatedAt: st.CreatedAt, Labels: st.Labels, Annotations: st.Annotations})
	}
	slices.SortFunc(resp.Containers, func(a, b *pb.Container) int {
		return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(b.Id, a.Id))
	})
	return resp, nil
}

// ContainerStatus gives the status of a container.
func (r *Runtime) ContainerStatus(_ context.Context,
	req *pb.ContainerStatusRequest) (*pb.ContainerStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, err := r.find(req.ContainerId)
	if err != nil {
		return nil, err
	}
	resp := &pb.ContainerStatusResponse{Status: proto.CloneOf(c.status)}
	if req.Verbose && r.CRIO {
		const info = `{"pid":1,"runtimeSpec":{"root":{"path":"/var/lib/containers/storage/overlay/%s/merged"}}}`
		resp.Info = map[string]string{"info": fmt.Sprintf(info, req.ContainerId)}
	}
	return resp, nil
}

// UpdateContainerResources changes those resources of a container that the request has; 0 means no change, and -1 no
// limit.
func (r *Runtime) UpdateContainerResources(_ context.Context,
	req *pb.UpdateContainerResourcesRequest) (*pb.UpdateContainerResourcesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, err := r.find(req.ContainerId)
	if err != nil {
		return nil, err
	}
	if limit := req.GetLinux().GetMemoryLimitInBytes(); limit < 0 && r.CRIO {
		return nil, fmt.Errorf("invalid memory limit: %d bytes (cannot be negative)", limit)
	}
	if c.status.Resources.Linux == nil {
		c.status.Resources.Linux = &pb.LinuxContainerResources{}
	}
	proto.Merge(c.status.Resources.Linux, req.Linux)
	return &pb.UpdateContainerResourcesResponse{}, nil
}

// ReopenContainerLog succeeds for a running container.
func (r *Runtime) ReopenContainerLog(_ context.Context,
	req *pb.ReopenContainerLogRequest) (*pb.ReopenContainerLogResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, err := r.find(req.ContainerId)
	if err == nil && c.status.State != pb.ContainerState_CONTAINER_RUNNING {
		err = errors.New("container is not running")
	}
	return &pb.ReopenContainerLogResponse{}, err
}

// Containers gives the containers there are, in the order of their making.
func (r *state) Containers() []*pb.ContainerStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*pb.ContainerStatus, 0, len(r.containers))
	for _, c := range r.containers {
		all = append(all, proto.CloneOf(c.status))
	}
	slices.SortFunc(all, func(a, b *pb.ContainerStatus) int { return cmp.Compare(a.Id, b.Id) })
	return all
}

// find gives a container or the runtime's not-found. r.mu is held.
func (r *state) find(id string) (*container, error) {
	if c := r.containers[id]; c != nil {
		return c, nil
	}
	return nil, status.Errorf(codes.NotFound, "an error occurred when try to find container %q: not found", id)
}
