package fake

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nodelet/nodelet/test/plugins/fake"
)

// TopologyKey is the label by which the driver says which node a volume can be reached from.
const TopologyKey = "topology.nodelet.test/node"

// Config describes a driver.
type Config struct {
	Name, NodeID string
	// State is the directory of volumes, attachments and failpoints.
	State string
	// Socket is where the driver serves.
	Socket string
	// Registry is the directory in which node plugins register; empty: the driver does not.
	Registry string
	// Links has block volumes published as links to their devices, as some drivers do.
	Links bool
	// Loop gives volumes a file system of their own on a loop device, and allows block volumes.
	Loop bool
	// NoStage leaves the capability STAGE_UNSTAGE_VOLUME out.
	NoStage bool
	// NoExpand leaves the capability EXPAND_VOLUME of the node plugin out.
	NoExpand bool
	// MountGroup sets the group of volumes by itself (VOLUME_MOUNT_GROUP).
	MountGroup bool
	// Condition reports the condition of volumes as drivers of CSI 1.12 do (VOLUME_CONDITION), Health as those of
	// 1.13 (GET_VOLUME_HEALTH), see Sicken.
	Condition, Health bool
	// MaxVolumes is what a node can attach; 0: any number.
	MaxVolumes int64
}

// Driver is a running driver.
type Driver struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedControllerServer
	csipb.UnimplementedNodeServer
	disks
	journal
	plugin fake.Plugin
	// maxVolumes is what a node can attach now.
	maxVolumes atomic.Int64
	// asked counts the calls of NodeGetInfo.
	asked atomic.Int64
}

// Asked returns how often the driver was asked about the node.
func (d *Driver) Asked() int64 { return d.asked.Load() }

// SetMaxVolumes changes how many volumes a node can attach.
func (d *Driver) SetMaxVolumes(n int64) { d.maxVolumes.Store(n) }

// journal records the calls that change something.
type journal struct {
	mu    sync.Mutex
	calls []string
	flags map[string][]string // the mount flags of the last call, by "Method volume"
	busy  map[string]bool     // volumes with a call under way
	// refused counts the calls for such volumes.
	refused int
}

// Start serves a driver, and registers it, until Close.
func Start(cfg Config) (*Driver, error) {
	d := &Driver{disks: disks{cfg}, journal: journal{busy: map[string]bool{}, flags: map[string][]string{}}}
	d.SetMaxVolumes(cfg.MaxVolumes)
	for _, dir := range []string{"volumes", "attached", "ephemeral", "fail", "grow", "sick"} {
		if err := os.MkdirAll(filepath.Join(cfg.State, dir), 0o755); err != nil {
			return nil, err
		}
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(d.intercept))
	csipb.RegisterIdentityServer(server, d)
	csipb.RegisterControllerServer(server, d)
	csipb.RegisterNodeServer(server, d)
	if err := d.plugin.Serve(server, cfg.Socket); err != nil {
		return nil, err
	}
	if cfg.Registry == "" {
		return d, nil
	}
	err := d.plugin.Register(filepath.Join(cfg.Registry, cfg.Name+"-reg.sock"),
		&registration.PluginInfo{
			Type:              "CSIPlugin",
			Name:              cfg.Name,
			Endpoint:          cfg.Socket,
			SupportedVersions: []string{"1.0.0"},
		})
	if err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// Close ends the driver at once, calls and all. Volumes stay as they are.
func (d *Driver) Close() { d.plugin.Close() }

// Registrations returns the registration statuses that the driver has received.
func (d *Driver) Registrations() []*registration.RegistrationStatus { return d.plugin.Registrations() }

// Calls are the calls that change something so far, as "Method volume".
func (j *journal) Calls() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]string(nil), j.calls...)
}

// Refused counts the calls that were refused because another one for their volume was under way.
func (j *journal) Refused() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.refused
}

// MountFlags are those that came with the last call of a method for a volume.
func (j *journal) MountFlags(method, id string) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.flags[method+" "+id]
}

// Busy reports whether a call for a volume is under way.
func (j *journal) Busy() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.busy) > 0
}

// GetPluginInfo names the driver.
func (d *Driver) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: d.cfg.Name, VendorVersion: "1"}, nil
}

// GetPluginCapabilities says that there is a controller, that volumes are reached from some nodes only, and that they
// grow while they are in use.
func (d *Driver) GetPluginCapabilities(context.Context, *csipb.GetPluginCapabilitiesRequest) (
	*csipb.GetPluginCapabilitiesResponse, error) {
	service := func(t csipb.PluginCapability_Service_Type) *csipb.PluginCapability {
		capability := &csipb.PluginCapability_Service_{Service: &csipb.PluginCapability_Service{Type: t}}
		return &csipb.PluginCapability{Type: capability}
	}
	expansion := &csipb.PluginCapability_VolumeExpansion{Type: csipb.PluginCapability_VolumeExpansion_ONLINE}
	online := &csipb.PluginCapability{Type: &csipb.PluginCapability_VolumeExpansion_{VolumeExpansion: expansion}}
	return &csipb.GetPluginCapabilitiesResponse{Capabilities: []*csipb.PluginCapability{
		service(csipb.PluginCapability_Service_CONTROLLER_SERVICE),
		service(csipb.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS), online}}, nil
}

// Probe says that the driver is ready.
func (d *Driver) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	return &csipb.ProbeResponse{}, nil
}
