package fake

import (
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	pb "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is a container runtime in memory. Make one with New, set its fields and scripts, call Start or Listen, and
// Close at the end.
type Runtime struct {
	// RuntimeName and RuntimeVersion are what the Version call returns; containerd v2.4.2 where empty.
	RuntimeName, RuntimeVersion string
	// Info is the verbose part of what the Status call returns.
	Info map[string]string
	// CgroupDriver is what the RuntimeConfig call returns.
	CgroupDriver pb.CgroupDriver
	// CRIO makes it answer as CRI-O where that differs from containerd: it removes no memory limit, a command that takes
	// too long has an exit code instead of an error, a container whose command is missing is not even created, and the
	// verbose status of a container names its root directory.
	CRIO bool
	// NoEvents makes GetContainerEvents unimplemented.
	NoEvents bool
	// EmptyEvents ends each stream of events at once and without an error, as CRI-O does without enable_pod_events.
	EmptyEvents bool
	// OtherReader takes each event. That happens with containerd 1.7, which gives an event to one reader only, be it one
	// that has gone.
	OtherReader bool
	// SandboxTakes is how long RunPodSandbox works.
	SandboxTakes time.Duration
	// NoAddresses makes RunPodSandbox succeed with sandboxes that have no address, as some network plugins do.
	NoAddresses bool

	pb.UnimplementedRuntimeServiceServer
	state
	imageStore
	faults
	scripts    map[string]Script
	exec       ExecFunc
	conditions map[string]*pb.RuntimeCondition

	server *grpc.Server
	pipe   *bufconn.Listener
	// socket is the path given to Listen, for Restart.
	socket string
}

// state is what exists in a runtime, and how it changes. The lock also guards the fields of Runtime.
type state struct {
	mu         sync.Mutex
	sandboxes  map[string]*sandbox
	containers map[string]*container
	// names holds the reserved names of sandboxes and containers, with the IDs they are reserved for.
	names       map[string]string
	subscribers map[*subscriber]struct{}
	ids, ips    int
}

// New makes an empty runtime that is ready, with network.
func New() *Runtime {
	return &Runtime{
		state: state{
			sandboxes:   map[string]*sandbox{},
			containers:  map[string]*container{},
			names:       map[string]string{},
			subscribers: map[*subscriber]struct{}{},
		},
		imageStore: imageStore{images: map[string]*pb.Image{}, registry: map[string]*RemoteImage{}},
		scripts:    map[string]Script{},
		conditions: map[string]*pb.RuntimeCondition{
			pb.RuntimeReady: {Type: pb.RuntimeReady, Status: true},
			pb.NetworkReady: {Type: pb.NetworkReady, Status: true},
		},
	}
}

// SetCondition changes what Status returns; kind is RuntimeReady, NetworkReady or one of the runtime's own.
func (r *Runtime) SetCondition(kind string, ok bool, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conditions[kind] = &pb.RuntimeCondition{Type: kind, Status: ok, Reason: reason, Message: message}
}

// newID makes an ID that looks like a runtime's and sorts in the order of making. r.mu is held.
func (r *state) newID(kind string) string {
	r.ids++
	return fmt.Sprintf("%s%060x", kind, r.ids)
}

// newIP gives the next address of the pod network. r.mu is held.
func (r *state) newIP() string {
	r.ips++
	return net.IPv4(10, 88, byte(r.ips>>8), byte(r.ips)).String()
}

// reserve takes a name, as containerd does before it works on a sandbox or container. r.mu is held.
func (r *state) reserve(what, name, id string) error {
	if holder, taken := r.names[name]; taken {
		hint := ""
		if what == "container" {
			hint = "; check if another CreateContainer request is in progress"
		}
		return status.Errorf(codes.FailedPrecondition, "failed to reserve %s name %q%s: name %q is reserved for %q", what,
			name, hint, name, holder)
	}
	r.names[name] = id
	return nil
}

func matches(selector, labels map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}
