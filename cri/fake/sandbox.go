package fake

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type sandbox struct {
	name   string
	status *runtimeapi.PodSandboxStatus
	config *runtimeapi.PodSandboxConfig
}

func attempt(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

func sandboxName(m *runtimeapi.PodSandboxMetadata) string {
	return strings.Join([]string{m.Name, m.Namespace, m.Uid, attempt(m.Attempt)}, "_")
}

// RunPodSandbox reserves the name, works and makes a ready sandbox. When the client goes meanwhile it gives up and frees
// the name.
func (r *Runtime) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	meta := req.GetConfig().GetMetadata()
	if meta == nil {
		return nil, fmt.Errorf("sandbox config must include metadata")
	}
	name := sandboxName(meta)
	r.mu.Lock()
	id := r.newID("5a2d")
	err := r.reserve("sandbox", name, id)
	takes := r.SandboxTakes
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	err = inside(ctx)
	if err == nil {
		err = work(ctx, takes)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		delete(r.names, name)
		return nil, err
	}
	r.addSandbox(id, name, req)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// addSandbox enters a ready sandbox. r.mu is held.
func (r *Runtime) addSandbox(id, name string, req *runtimeapi.RunPodSandboxRequest) {
	cfg := req.Config
	options := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	network := &runtimeapi.PodSandboxNetworkStatus{}
	if options.GetNetwork() != runtimeapi.NamespaceMode_NODE {
		network.Ip = r.newIP()
	}
	r.sandboxes[id] = &sandbox{name: name, config: cfg, status: &runtimeapi.PodSandboxStatus{
		Id: id, Metadata: cfg.Metadata, State: runtimeapi.PodSandboxState_SANDBOX_READY, CreatedAt: time.Now().UnixNano(),
		Network: network, Labels: cfg.Labels, Annotations: cfg.Annotations, RuntimeHandler: req.RuntimeHandler,
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: options}},
	}}
	r.publish(id, id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	r.publish(id, id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
}

// work takes its time, unless the client goes.
func work(ctx context.Context, takes time.Duration) error {
	if takes <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(takes)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// endSandbox makes a sandbox not ready and takes its address away. r.mu is held.
func (r *Runtime) endSandbox(s *sandbox) {
	if s.status.State == runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
		return
	}
	s.status.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	s.status.Network = &runtimeapi.PodSandboxNetworkStatus{}
	r.publish(s.status.Id, s.status.Id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// KillSandbox ends a sandbox and the containers in it from outside, as when its first process is killed.
func (r *Runtime) KillSandbox(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sandboxes[id]; s != nil {
		r.killContainers(id)
		r.endSandbox(s)
	}
}

func (r *Runtime) killContainers(sandboxID string) {
	for _, c := range r.containers {
		if c.sandboxID == sandboxID {
			r.exit(c, 137, "Error")
		}
	}
}

// StopPodSandbox kills the containers and ends the sandbox.
func (r *Runtime) StopPodSandbox(_ context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	r.KillSandbox(req.PodSandboxId)
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// RemovePodSandbox stops the sandbox and removes it with its containers.
func (r *Runtime) RemovePodSandbox(_ context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	r.KillSandbox(req.PodSandboxId)
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[req.PodSandboxId]
	if s == nil {
		return &runtimeapi.RemovePodSandboxResponse{}, nil
	}
	for _, c := range r.containers {
		if c.sandboxID == s.status.Id {
			r.removeContainer(c)
		}
	}
	r.publish(s.status.Id, s.status.Id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	delete(r.sandboxes, s.status.Id)
	delete(r.names, s.name)
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// ListPodSandbox lists the sandboxes that pass the filter, the youngest first.
func (r *Runtime) ListPodSandbox(_ context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, resp := req.GetFilter(), &runtimeapi.ListPodSandboxResponse{}
	for _, s := range r.sandboxes {
		st := s.status
		if f.GetId() != "" && f.GetId() != st.Id || f.GetState() != nil && f.GetState().State != st.State ||
			!matches(f.GetLabelSelector(), st.Labels) {
			continue
		}
		resp.Items = append(resp.Items, &runtimeapi.PodSandbox{Id: st.Id, Metadata: st.Metadata, State: st.State,
			CreatedAt: st.CreatedAt, Labels: st.Labels, Annotations: st.Annotations, RuntimeHandler: st.RuntimeHandler})
	}
	slices.SortFunc(resp.Items, func(a, b *runtimeapi.PodSandbox) int {
		return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(b.Id, a.Id))
	})
	return resp, nil
}

// PodSandboxStatus gives the status of a sandbox.
func (r *Runtime) PodSandboxStatus(_ context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, err := r.findSandbox(req.PodSandboxId)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: proto.CloneOf(s.status)}, nil
}

// Sandboxes gives the sandboxes there are, in the order of their making.
func (r *Runtime) Sandboxes() []*runtimeapi.PodSandboxStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*runtimeapi.PodSandboxStatus, 0, len(r.sandboxes))
	for _, s := range r.sandboxes {
		all = append(all, proto.CloneOf(s.status))
	}
	slices.SortFunc(all, func(a, b *runtimeapi.PodSandboxStatus) int { return cmp.Compare(a.Id, b.Id) })
	return all
}

// findSandbox gives a sandbox or the runtime's not-found. r.mu is held.
func (r *Runtime) findSandbox(id string) (*sandbox, error) {
	if s := r.sandboxes[id]; s != nil {
		return s, nil
	}
	return nil, status.Errorf(codes.NotFound, "an error occurred when try to find sandbox %q: not found", id)
}
