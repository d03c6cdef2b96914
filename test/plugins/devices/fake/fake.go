// Package fake is a device plugin for tests: small, but real. It serves the device plugin interface over gRPC,
// registers at the agent's socket or by a socket of its own as plugins do, and allocates devices that are only
// names: a container gets an environment variable with them, /dev/null under the name of each, and a mount where there
// is a directory to mount.
//
// All it is asked is on record. Only tests call it.
package fake

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nodelet/nodelet/test/plugins/fake"
)

// Variable is the environment variable that names a container's devices.
const Variable = "FAKE_DEVICES"

// Config describes a plugin.
type Config struct {
	Root     string // the agent's
	Resource string
	Devices  []string
	// Again are devices that it lists a second time, as unhealthy.
	Again []string
	// Mount is a directory of the host that containers see at /fake; empty: none.
	Mount string
	// Socket is the name of its socket; empty: one made of Resource.
	Socket string
	// Registry: it registers by a socket in plugins_registry, not at the agent's.
	Registry bool
	// PreStart and Prefer: it wants PreStartContainer and GetPreferredAllocation. It prefers the last devices.
	PreStart, Prefer bool
}

// Plugin is a running plugin.
type Plugin struct {
	api.UnimplementedDevicePluginServer
	plugin fake.Plugin

	cfg Config

	mu        sync.Mutex
	unhealthy map[string]bool
	changed   chan struct{} // closed and replaced when a device's health has changed
	silent    bool
	calls     []string
	failure   error
	held      *hold
}

// hold is what calls wait for.
type hold struct {
	waiting  chan string
	released chan struct{}
}

// Start serves a plugin until Close; it does not register at the agent's socket by itself.
func Start(cfg Config) (*Plugin, error) {
	p := &Plugin{cfg: cfg, unhealthy: map[string]bool{}, changed: make(chan struct{})}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	if !cfg.Registry {
		return p, p.plugin.Serve(server, filepath.Join(cfg.Root, "device-plugins", p.socket()))
	}
	if err := p.plugin.Serve(server, p.endpoint()); err != nil {
		return nil, err
	}
	return p, p.plugin.Register(filepath.Join(cfg.Root, "plugins_registry", p.socket()),
		&registration.PluginInfo{Type: registration.DevicePlugin, Name: cfg.Resource, Endpoint: p.endpoint(),
			SupportedVersions: []string{api.Version}})
}

func (p *Plugin) socket() string {
	return cmp.Or(p.cfg.Socket, strings.ReplaceAll(p.cfg.Resource, "/", "-")+".sock")
}

func (p *Plugin) endpoint() string { return filepath.Join(p.cfg.Root, "plugins", p.socket()) }

// Close ends the plugin at once, calls and all.
func (p *Plugin) Close() { p.plugin.Close() }

// Registrations returns the registration statuses that the plugin has received at a socket of its own.
func (p *Plugin) Registrations() []*registration.RegistrationStatus { return p.plugin.Registrations() }

// Register registers the plugin at the agent's socket, waiting for that until ctx ends.
func (p *Plugin) Register(ctx context.Context) error {
	return Register(ctx, p.cfg.Root, &api.RegisterRequest{Version: api.Version, Endpoint: p.socket(),
		ResourceName: p.cfg.Resource})
}

// Register sends a registration to the agent's socket, waiting for that until ctx ends.
func Register(ctx context.Context, root string, r *api.RegisterRequest) error {
	conn, err := grpc.NewClient("unix://"+filepath.Join(root, "device-plugins", "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = api.NewRegistrationClient(conn).Register(ctx, r, grpc.WaitForReady(true))
	return err
}

// Calls are the calls so far, with their devices; those that only ask are left out.
func (p *Plugin) Calls() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// Fail has all calls that act fail from now on; nil ends that.
func (p *Plugin) Fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failure = err
}

// Hold has all calls that choose or act wait from now on, each after its name was sent to waiting, until release: like
// many plugins, this one does not notice that its caller has gone. A call waits for the Hold before it that was last.
func (p *Plugin) Hold() (waiting <-chan string, release func()) {
	h := &hold{waiting: make(chan string, 100), released: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = h
	return h.waiting, sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.held == h {
			p.held = nil
		}
		close(h.released)
	})
}

func (p *Plugin) wait(verb string) {
	p.mu.Lock()
	h := p.held
	p.mu.Unlock()
	if h != nil {
		h.waiting <- verb
		<-h.released
	}
}

// SetHealth changes the health of a device.
func (p *Plugin) SetHealth(device string, healthy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unhealthy[device] = !healthy
	close(p.changed)
	p.changed = make(chan struct{})
}

// StopListing ends ListAndWatch, as a plugin does that is about to end and completes the other calls first.
func (p *Plugin) StopListing() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = true
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Plugin) note(verb string, ids []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	slices.Sort(ids)
	p.calls = append(p.calls, verb+" "+strings.Join(ids, ","))
	return p.failure
}

// GetDevicePluginOptions returns which optional calls the plugin wants.
func (p *Plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{PreStartRequired: p.cfg.PreStart, GetPreferredAllocationAvailable: p.cfg.Prefer}, nil
}

// ListAndWatch sends the devices, the first at NUMA node 0 and the others at none, and again when their health
// changes.
func (p *Plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	for {
		list := &api.ListAndWatchResponse{}
		p.mu.Lock()
		if p.silent {
			p.mu.Unlock()
			return nil
		}
		for i, id := range p.cfg.Devices {
			d := &api.Device{ID: id, Health: api.Healthy}
			if p.unhealthy[id] {
				d.Health = api.Unhealthy
			}
			if i == 0 {
				d.Topology = &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 0}}}
			}
			list.Devices = append(list.Devices, d)
		}
		for _, id := range p.cfg.Again {
			list.Devices = append(list.Devices, &api.Device{ID: id, Health: api.Unhealthy})
		}
		changed := p.changed
		p.mu.Unlock()
		if err := stream.Send(list); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// GetPreferredAllocation prefers the last devices.
func (p *Plugin) GetPreferredAllocation(_ context.Context,
	q *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	p.wait("GetPreferredAllocation")
	out := &api.PreferredAllocationResponse{}
	for _, c := range q.ContainerRequests {
		ids := slices.Sorted(slices.Values(c.AvailableDeviceIDs))
		ids = ids[max(0, len(ids)-int(c.AllocationSize)):]
		out.ContainerResponses = append(out.ContainerResponses, &api.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return out, nil
}

// Allocate returns what the containers get for their devices.
func (p *Plugin) Allocate(_ context.Context, q *api.AllocateRequest) (*api.AllocateResponse, error) {
	p.wait("Allocate")
	out := &api.AllocateResponse{}
	for _, c := range q.ContainerRequests {
		if err := p.note("Allocate", c.DevicesIds); err != nil {
			return nil, err
		}
		one := &api.ContainerAllocateResponse{Envs: map[string]string{Variable: strings.Join(c.DevicesIds, ",")}}
		for _, id := range c.DevicesIds {
			one.Devices = append(one.Devices, &api.DeviceSpec{ContainerPath: "/dev/" + id, HostPath: "/dev/null",
				Permissions: "rw"})
		}
		if p.cfg.Mount != "" {
			one.Mounts = append(one.Mounts, &api.Mount{ContainerPath: "/fake", HostPath: p.cfg.Mount, ReadOnly: true})
		}
		out.ContainerResponses = append(out.ContainerResponses, one)
	}
	return out, nil
}

// PreStartContainer is on record, no more.
func (p *Plugin) PreStartContainer(_ context.Context,
	q *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	p.wait("PreStartContainer")
	return &api.PreStartContainerResponse{}, p.note("PreStartContainer", q.DevicesIds)
}
