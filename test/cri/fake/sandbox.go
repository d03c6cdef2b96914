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
	pb "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type sandbox struct {
	name   string
	status *pb.PodSandboxStatus
	config *pb.PodSandboxConfig
}

func attempt(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

func sandboxName(m *pb.PodSandboxMetadata) string {
	return strings.Join([]string{m.Name, m.Namespace, m.Uid, attempt(m.Attempt)}, "_")
}

// RunPodSandbox reserves the name, works and makes a ready sandbox. When the client goes meanwhile it gives up and
// frees the name.
func (r *Runtime) RunPodSandbox(ctx context.Context, req *pb.RunPodSandboxRequest) (*pb.RunPodSandboxResponse, error) {
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
	made := r.addSandbox(id, name, req)
	if r.NoAddresses {
		made.status.Network = &pb.PodSandboxNetworkStatus{}
	}
	return &pb.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// addSandbox enters a ready sandbox. r.mu is held.
func (r *state) addSandbox(id, name string, req *pb.RunPodSandboxRequest) *sandbox {
	cfg := req.Config
	options := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	network := &pb.PodSandboxNetworkStatus{}
	if options.GetNetwork() != pb.NamespaceMode_NODE {
		network.Ip = r.newIP()
	}
	made := &sandbox{name: name, config: cfg, status: &pb.PodSandboxStatus{
		Id: id, Metadata: cfg.Metadata, State: pb.PodSandboxState_SANDBOX_READY, CreatedAt: time.Now().UnixNano(),
		Network: network, Labels: cfg.Labels, Annotations: cfg.Annotations, RuntimeHandler: req.RuntimeHandler,
		Linux: &pb.LinuxPodSandboxStatus{Namespaces: &pb.Namespace{Options: options}},
	}}
	r.sandboxes[id] = made
	r.publish(id, id, pb.ContainerEventType_CONTAINER_CREATED_EVENT)
	r.publish(id, id, pb.ContainerEventType_CONTAINER_STARTED_EVENT)
	return made
}

// HalfMade enters what containerd shows after it was killed during RunPodSandbox: a sandbox that is not ready, with no
// address and a creation time that is nonsense. Killed early, its name is free again, so that the same attempt can be
// run once more beside it; killed late, the name is reserved.
func (r *state) HalfMade(cfg *pb.PodSandboxConfig, late bool) (id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id = r.newID("5a2d")
	name := ""
	if late {
		name = sandboxName(cfg.Metadata)
		r.names[name] = id
	}
	r.sandboxes[id] = &sandbox{name: name, config: cfg, status: &pb.PodSandboxStatus{
		Id: id, Metadata: cfg.Metadata, State: pb.PodSandboxState_SANDBOX_NOTREADY, CreatedAt: time.Time{}.UnixNano(),
		Network: &pb.PodSandboxNetworkStatus{}, Labels: cfg.Labels, Annotations: cfg.Annotations,
	}}
	return id
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

// endSandbox makes a sandbox not ready. r.mu is held.
func (r *state) endSandbox(s *sandbox) {
	if s.status.State == pb.PodSandboxState_SANDBOX_NOTREADY {
		return
	}
	s.status.State = pb.PodSandboxState_SANDBOX_NOTREADY
	r.publish(s.status.Id, s.status.Id, pb.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// KillSandbox ends a sandbox from outside, as when its first process is killed: it is not ready any more, but its
// containers run on and its address stays until StopPodSandbox.
func (r *state) KillSandbox(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sandboxes[id]; s != nil {
		r.endSandbox(s)
	}
}

// stopSandbox ends a sandbox, the containers in it and its network. r.mu is held.
func (r *state) stopSandbox(s *sandbox) {
	for _, c := range r.containers {
		if c.sandboxID == s.status.Id {
			r.exit(c, 137, "")
		}
	}
	r.endSandbox(s)
	s.status.Network = &pb.PodSandboxNetworkStatus{}
}

// SetIPs changes the addresses of a sandbox, the primary one first.
func (r *state) SetIPs(id string, ips ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[id]
	if s == nil {
		return
	}
	s.status.Network = &pb.PodSandboxNetworkStatus{}
	for i, ip := range ips {
		if i == 0 {
			s.status.Network.Ip = ip
			continue
		}
		s.status.Network.AdditionalIps = append(s.status.Network.AdditionalIps, &pb.PodIP{Ip: ip})
	}
}

// StopPodSandbox kills the containers and ends the sandbox.
func (r *Runtime) StopPodSandbox(_ context.Context, req *pb.StopPodSandboxRequest) (*pb.StopPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sandboxes[req.PodSandboxId]; s != nil {
		r.stopSandbox(s)
	}
	return &pb.StopPodSandboxResponse{}, nil
}

// RemovePodSandbox stops the sandbox and removes it with its containers.
func (r *Runtime) RemovePodSandbox(_ context.Context,
	req *pb.RemovePodSandboxRequest) (*pb.RemovePodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[req.PodSandboxId]
	if s == nil {
		return &pb.RemovePodSandboxResponse{}, nil
	}
	r.stopSandbox(s)
	for _, c := range r.containers {
		if c.sandboxID == s.status.Id {
			r.removeContainer(c)
		}
	}
	r.publish(s.status.Id, s.status.Id, pb.ContainerEventType_CONTAINER_DELETED_EVENT)
	delete(r.sandboxes, s.status.Id)
	delete(r.names, s.name)
	return &pb.RemovePodSandboxResponse{}, nil
}

// ListPodSandbox lists the sandboxes that pass the filter, the youngest first.
func (r *Runtime) ListPodSandbox(_ context.Context, req *pb.ListPodSandboxRequest) (*pb.ListPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, resp := req.GetFilter(), &pb.ListPodSandboxResponse{}
	for _, s := range r.sandboxes {
		st := s.status
		if f.GetId() != "" && f.GetId() != st.Id || f.GetState() != nil && f.GetState().State != st.State ||
			!matches(f.GetLabelSelector(), st.Labels) {
			continue
		}
		resp.Items = append(resp.Items, &pb.PodSandbox{Id: st.Id, Metadata: st.Metadata, State: st.State,
			CreatedAt: st.CreatedAt, Labels: st.Labels, Annotations: st.Annotations, RuntimeHandler: st.RuntimeHandler})
	}
	slices.SortFunc(resp.Items, func(a, b *pb.PodSandbox) int {
		return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(b.Id, a.Id))
	})
	return resp, nil
}

// PodSandboxStatus gives the status of a sandbox.
func (r *Runtime) PodSandboxStatus(_ context.Context,
	req *pb.PodSandboxStatusRequest) (*pb.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, err := r.findSandbox(req.PodSandboxId)
	if err != nil {
		return nil, err
	}
	return &pb.PodSandboxStatusResponse{Status: proto.CloneOf(s.status)}, nil
}

// Sandboxes gives the sandboxes there are, in the order of their making.
func (r *state) Sandboxes() []*pb.PodSandboxStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*pb.PodSandboxStatus, 0, len(r.sandboxes))
	for _, s := range r.sandboxes {
		all = append(all, proto.CloneOf(s.status))
	}
	slices.SortFunc(all, func(a, b *pb.PodSandboxStatus) int { return cmp.Compare(a.Id, b.Id) })
	return all
}

// findSandbox gives a sandbox or the runtime's not-found. r.mu is held.
func (r *state) findSandbox(id string) (*sandbox, error) {
	if s := r.sandboxes[id]; s != nil {
		return s, nil
	}
	return nil, status.Errorf(codes.NotFound, "an error occurred when try to find sandbox %q: not found", id)
}
