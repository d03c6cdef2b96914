// Package fake is a DRA driver for tests: small, but real. It serves the interface of DRA drivers over gRPC, registers
// as drivers do, and prepares claims whose devices are names and no more: a container gets an environment variable for
// each claim by a CDI file, where there is a directory for those.
//
// All it is asked is on record. Only tests call it.
package fake

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1"
	api "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nodelet/nodelet/test/plugins/fake"
)

// Config describes a driver.
type Config struct {
	Root string // the agent's
	Name string
	// Instance distinguishes instances of the same driver; it may be empty for one of them.
	Instance string
	// Services are those that it says it serves; none stands for v1.
	Services []string
	// CDIDir is where it writes CDI files; empty: nowhere.
	CDIDir string
	// Devices are those of a claim; nil: one for each claim, for all its requests.
	Devices func(c *api.Claim) []*api.Device
}

// Driver is a running driver.
type Driver struct {
	api.UnimplementedDRAPluginServer
	plugin fake.Plugin
	cfg    Config

	mu      sync.Mutex
	calls   []string
	failure string
	held    *hold
	// report is what it reports about the health of its devices; nil: nothing. reportChanged is closed and replaced when
	// that changes.
	report        *health.NodeWatchResourcesResponse
	reportChanged chan struct{}
}

// hold is what calls wait for.
type hold struct {
	waiting  chan string
	released chan struct{}
}

// Start serves and registers a driver until Close.
func Start(cfg Config) (*Driver, error) {
	if len(cfg.Services) == 0 {
		cfg.Services = []string{api.DRAPluginService}
	}
	d := &Driver{cfg: cfg, reportChanged: make(chan struct{})}
	server := grpc.NewServer()
	api.RegisterDRAPluginServer(server, d)
	v1beta1.RegisterDRAPluginServer(server, v1beta1.V1ServerWrapper{DRAPluginServer: d})
	d.serveHealth(server)
	endpoint := filepath.Join(cfg.Root, "plugins", cfg.Name, "dra"+cfg.Instance+".sock")
	if err := d.plugin.Serve(server, endpoint); err != nil {
		return nil, err
	}
	return d, d.plugin.Register(filepath.Join(cfg.Root, "plugins_registry", cfg.Name+cfg.Instance+".sock"),
		&registration.PluginInfo{Type: registration.DRAPlugin, Name: cfg.Name, Endpoint: endpoint,
			SupportedVersions: cfg.Services})
}

// Close ends the driver at once, calls and all.
func (d *Driver) Close() { d.plugin.Close() }

// Registrations returns the registration statuses that the driver has received.
func (d *Driver) Registrations() []*registration.RegistrationStatus { return d.plugin.Registrations() }

// Calls are the calls so far, as "prepare claim,claim".
func (d *Driver) Calls() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

// Fail has the driver say of all claims from now on that they failed so; empty ends that.
func (d *Driver) Fail(why string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failure = why
}

// Hold has all calls wait from now on, each after its name was sent to waiting, until release: like many drivers, this
// one does not notice that its caller has gone.
func (d *Driver) Hold() (waiting <-chan string, release func()) {
	h := &hold{waiting: make(chan string, 100), released: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held = h
	return h.waiting, sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.held = nil
		close(h.released)
	})
}

// begin notes a call and waits where calls are held. It returns what fails all claims.
func (d *Driver) begin(verb string, claims []*api.Claim) (failure string) {
	var names []string
	for _, c := range claims {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	call := verb + " " + strings.Join(names, ",")
	d.mu.Lock()
	d.calls = append(d.calls, call)
	h, failure := d.held, d.failure
	d.mu.Unlock()
	if h != nil {
		h.waiting <- call
		<-h.released
	}
	return failure
}

// NodePrepareResources prepares claims.
func (d *Driver) NodePrepareResources(_ context.Context,
	q *api.NodePrepareResourcesRequest) (*api.NodePrepareResourcesResponse, error) {
	failure := d.begin("prepare", q.Claims)
	out := &api.NodePrepareResourcesResponse{Claims: map[string]*api.NodePrepareResourceResponse{}}
	for _, c := range q.Claims {
		one := &api.NodePrepareResourceResponse{Error: failure}
		if failure == "" {
			one.Devices = d.devices(c)
			if err := d.writeCDI(c, one.Devices); err != nil {
				return nil, err
			}
		}
		out.Claims[c.Uid] = one
	}
	return out, nil
}

func (d *Driver) devices(c *api.Claim) []*api.Device {
	if d.cfg.Devices != nil {
		return d.cfg.Devices(c)
	}
	return []*api.Device{{PoolName: "pool", DeviceName: "device-" + c.Name,
		CdiDeviceIds: []string{d.kind() + "=" + c.Uid}}}
}

// kind is that of the driver's CDI devices.
func (d *Driver) kind() string { return d.cfg.Name + "/fake" }

// Variable is the environment variable that a container with a claim has; its value is the claim's UID.
func Variable(claim string) string {
	return "FAKE_" + strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(claim))
}

type cdiDevice struct {
	Name           string `json:"name"`
	ContainerEdits struct {
		Env []string `json:"env"`
	} `json:"containerEdits"`
}

// writeCDI writes the CDI file that describes the devices of a claim to the runtime.
func (d *Driver) writeCDI(c *api.Claim, devices []*api.Device) error {
	if d.cfg.CDIDir == "" {
		return nil
	}
	var all []cdiDevice
	for _, device := range devices {
		for _, id := range device.CdiDeviceIds {
			one := cdiDevice{Name: strings.TrimPrefix(id, d.kind()+"=")}
			one.ContainerEdits.Env = []string{Variable(c.Name) + "=" + c.Uid}
			all = append(all, one)
		}
	}
	text, err := json.Marshal(map[string]any{"cdiVersion": "0.6.0", "kind": d.kind(), "devices": all})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.cfg.CDIDir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(d.cdiFile(c), text, 0o644)
}

func (d *Driver) cdiFile(c *api.Claim) string {
	return filepath.Join(d.cfg.CDIDir, fmt.Sprintf("%s-%s.json", d.cfg.Name, c.Uid))
}

// NodeUnprepareResources unprepares claims.
func (d *Driver) NodeUnprepareResources(_ context.Context,
	q *api.NodeUnprepareResourcesRequest) (*api.NodeUnprepareResourcesResponse, error) {
	failure := d.begin("unprepare", q.Claims)
	out := &api.NodeUnprepareResourcesResponse{Claims: map[string]*api.NodeUnprepareResourceResponse{}}
	for _, c := range q.Claims {
		out.Claims[c.Uid] = &api.NodeUnprepareResourceResponse{Error: failure}
		if d.cfg.CDIDir != "" && failure == "" {
			if err := os.Remove(d.cdiFile(c)); err != nil && !os.IsNotExist(err) {
				return nil, err
			}
		}
	}
	return out, nil
}
